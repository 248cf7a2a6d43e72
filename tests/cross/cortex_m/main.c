/* RUNS inferences of one sample; the result is 0 if the last output is the expected one. */
#include "net.h"
#include <string.h>

void print(const char *text);

extern const unsigned char sample[], expected[];
static _Alignas(NET_ARENA_ALIGN) unsigned char arena[NET_ARENA_NBYTES];
static _Alignas(8) unsigned char result[NET_OUTPUT0_NBYTES];

int main(void) {
    const void *inputs[] = {sample};
    void *outputs[] = {result};
    for (int run = 0; run < RUNS; run++) {
        const int error = net_run(arena, inputs, outputs);
        if (error) {
            print("net_run refused its arguments\n");
            return 2;
        }
    }
    if (memcmp(result, expected, sizeof result)) {
        print("the output differs\n");
        return 1;
    }
    print("equal\n");
    return 0;
}
