/* Bytes of stack that a run of the bundle "net" takes: those below its caller that it overwrites. */
enum { PAINTED_NBYTES = 1 << 19, PAINT = 0xA5 };

#if defined(__x86_64__)
#define STACK_POINTER "mov %%rsp, %0"
#elif defined(__riscv)
#define STACK_POINTER "mv %0, sp"
#else
#define STACK_POINTER "mov %0, sp"
#endif

__attribute__((noinline)) static int run_painted(void *arena, const void *const *inputs,
                                                 void *const *outputs, long *taken)
{
    volatile unsigned char *pointer;
    long i;
    int result;
    __asm__ volatile(STACK_POINTER : "=r"(pointer));
    for (i = 1; i <= PAINTED_NBYTES; i++)
        pointer[-i] = PAINT;
    result = net_run(arena, inputs, outputs);
    for (i = PAINTED_NBYTES; i > 0 && pointer[-i] == PAINT; i--)
        ;
    *taken = i;
    return result;
}
