/* RUNS inferences of one sample between guards; the result is 0 if the last output is the expected
   one.  TOO_FAR: a byte beyond the arena is read first.  SHOWN: the output is printed in hexadecimal
   digits instead. */
#include "guards.h"
#include "net.h"
#include <string.h>

void print(const char *text);

extern const unsigned char sample[], expected[];
static _Alignas(NET_ARENA_ALIGN) struct {
    unsigned char before[GUARD_NBYTES];
    unsigned char arena[NET_ARENA_NBYTES];
    unsigned char behind[GUARD_NBYTES];
} memory;
static _Alignas(GUARD_NBYTES) struct {
    unsigned char before[GUARD_NBYTES];
    unsigned char result[NET_OUTPUT0_NBYTES];
    unsigned char behind[GUARD_NBYTES];
} output;
enum { PATTERN = 0xA5 };

static int is_whole(const unsigned char *bytes) {
    for (int i = 0; i < GUARD_NBYTES; i++)
        if (bytes[i] != PATTERN)
            return 0;
    return 1;
}

#ifdef SHOWN
static void show(const unsigned char *bytes, int count) {
    static const char digits[] = "0123456789abcdef";
    static char text[2 * NET_OUTPUT0_NBYTES + 1];
    for (int i = 0; i < count; i++) {
        text[2 * i] = digits[bytes[i] >> 4];
        text[2 * i + 1] = digits[bytes[i] & 15];
    }
    print(text);
}
#endif

int main(void) {
    const void *inputs[] = {sample};
    void *outputs[] = {output.result};
    memset(&output, PATTERN, sizeof output);
    memset(memory.arena, PATTERN, sizeof memory.arena);
    guard(memory.before);
    guard(memory.behind);
#ifdef TOO_FAR
    (void)((const volatile unsigned char *)memory.arena)[TOO_FAR];
#endif
    for (int run = 0; run < RUNS; run++) {
        const int error = net_run(memory.arena, inputs, outputs);
        if (error) {
            print("net_run refused its arguments\n");
            return 2;
        }
    }
#ifdef SHOWN
    show(output.result, sizeof output.result);
    return 0;
#endif
    if (memcmp(output.result, expected, sizeof output.result)) {
        print("the output differs\n");
        return 1;
    }
    if (!is_whole(output.before) || !is_whole(output.behind)) {
        print("bytes beside the output were written\n");
        return 3;
    }
    print("equal\n");
    return 0;
}
