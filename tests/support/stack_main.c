/* Prints the bytes of stack that a run of the bundle "net" takes on zeros, and what its header says
   of this processor, and of all. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "net.h"
#include "painted_stack.h"

enum { ALIGN = 64, NO_MEMORY = 90 };

#ifdef NET_STACK_NBYTES_AT
#define STATED NET_STACK_NBYTES_AT(net_vlen())
#else
#define STATED NET_STACK_NBYTES
#endif

static void *zeros(int64_t nbytes)
{
    const size_t size = ((size_t)nbytes / ALIGN + 1) * ALIGN;
    void *data = aligned_alloc(ALIGN, size);
    if (!data)
        exit(NO_MEMORY);
    return memset(data, 0, size);
}

int main(void)
{
    const void *inputs[NET_INPUT_COUNT + 1];
    void *outputs[NET_OUTPUT_COUNT + 1];
    void *arena = zeros(NET_ARENA_NBYTES);
    long taken;
    int i, result;
    for (i = 0; i < NET_INPUT_COUNT; i++)
        inputs[i] = zeros(net_facts.inputs[i].nbytes);
    for (i = 0; i < NET_OUTPUT_COUNT; i++)
        outputs[i] = zeros(net_facts.outputs[i].nbytes);
    result = run_painted(arena, inputs, outputs, &taken);
    printf("%ld %ld %ld\n", taken, (long)STATED, (long)NET_STACK_NBYTES);
    return result;
}
