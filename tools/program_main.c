/* Runs a program of quantglow: reads the inputs of some samples, runs each sample several times,
   and writes the outputs.  NAME_run is `net_run`; sizes come from the command line of the
   compiler.  Exit code 96: the first run took more stack than STACK_NBYTES and STACK_REGISTERS say. */
#include <stdio.h>
#include <stdlib.h>

int net_run(void *arena, const void *const *inputs, void *const *outputs);
int net_vlen(void);
#include "painted_stack.h"

#if STACK_REGISTERS
#define STATED (STACK_NBYTES + STACK_REGISTERS * (net_vlen() / 8))
#else
#define STATED STACK_NBYTES
#endif

static const size_t input_nbytes[] = {INPUTS}, output_nbytes[] = {OUTPUTS};
enum { ALIGN = 64, INPUT_COUNT = sizeof input_nbytes / sizeof *input_nbytes,
       OUTPUT_COUNT = sizeof output_nbytes / sizeof *output_nbytes };

static void *room(size_t nbytes) {
    void *memory = aligned_alloc(ALIGN, (nbytes / ALIGN + 1) * ALIGN);
    if (!memory) exit(97);
    return memory;
}

int main(int count, char **arguments) {
    int samples = atoi(arguments[1]), runs = atoi(arguments[2]);
    const void *inputs[INPUT_COUNT];
    void *outputs[OUTPUT_COUNT], *arena = room(ARENA);
    for (int i = 0; i < INPUT_COUNT; i++) inputs[i] = room(input_nbytes[i]);
    for (int i = 0; i < OUTPUT_COUNT; i++) outputs[i] = room(output_nbytes[i]);
    for (int sample = 0; sample < samples; sample++) {
        for (int i = 0; i < INPUT_COUNT; i++)
            if (fread((void *)inputs[i], 1, input_nbytes[i], stdin) != input_nbytes[i]) return 99;
        for (int run = 0; run < runs; run++) {
            long taken = 0;
            int result = sample || run ? net_run(arena, inputs, outputs)
                                       : run_painted(arena, inputs, outputs, &taken);
            if (result) return result;
            if (taken > STATED) return 96;
        }
        for (int i = 0; i < OUTPUT_COUNT; i++) fwrite(outputs[i], 1, output_nbytes[i], stdout);
    }
    return count != 3;
}
