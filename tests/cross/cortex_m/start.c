/* Start-up of a Cortex-M processor under QEMU: memory, floating point and vectors, then main, whose
   result ends the emulation.  Faults end it with 70. */
#include <stdint.h>

extern uint32_t stack_top[], data_image[], data_begin[], data_end[], bss_begin[], bss_end[];
int main(void);
void reset(void);
void fault(void);

static void semihosting(uint32_t operation, const void *operand) {
    register uint32_t r0 __asm__("r0") = operation;
    register const void *r1 __asm__("r1") = operand;
    __asm__ volatile("bkpt 0xab" : "+r"(r0) : "r"(r1) : "memory");
}

void print(const char *text) { semihosting(0x04, text); }

void leave(uint32_t code) {
    const uint32_t reason[2] = {0x20026, code};
    semihosting(0x20, reason);
    for (;;) {
    }
}

__attribute__((section(".vectors"), used)) static const void *const vectors[16] = {
    stack_top, reset, fault, fault, fault, fault, fault,
};

void fault(void) {
    print("fault\n");
    leave(70);
}

void reset(void) {
#if __ARM_ARCH > 6 || (__ARM_ARCH_PROFILE == 'M' && __ARM_ARCH >= 7)
    *(volatile uint32_t *)0xE000ED88 |= 0xFu << 20;
    __asm__ volatile("dsb\n\tisb" ::: "memory");
#endif
    const uint32_t *from = data_image;
    for (uint32_t *to = data_begin; to < data_end; to++)
        *to = *from++;
    for (uint32_t *to = bss_begin; to < bss_end; to++)
        *to = 0;
    leave((uint32_t)main());
}
