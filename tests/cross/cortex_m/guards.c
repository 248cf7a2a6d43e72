/* Guards of the MPU: areas without access before and behind the arena. */
#include "guards.h"

#define MPU_CTRL (*(volatile uint32_t *)0xE000ED94)
#define MPU_RNR (*(volatile uint32_t *)0xE000ED98)
#define MPU_RBAR (*(volatile uint32_t *)0xE000ED9C)
#define MPU_SIZE (*(volatile uint32_t *)0xE000EDA0)

enum { ENABLE = 1, BACKGROUND = 4 };

static uint32_t next_region;

static void region(uint32_t base, uint32_t size) {
    MPU_RNR = next_region++;
    MPU_RBAR = base;
    MPU_SIZE = size;
}

void guard(const void *address) {
    const uint32_t base = (uint32_t)address;
#if BOARD_HAS_PMSAV8
    /* No region denies privileged code all access, but two regions of one address do. */
    const uint32_t limit = (base + GUARD_NBYTES - 1) & ~31u;
    region(base, limit | ENABLE);
    region(base, limit | ENABLE);
#else
    /* GUARD_NBYTES = 2^(5 + 1) */
    region(base, 5u << 1 | ENABLE);
#endif
    MPU_CTRL = ENABLE | BACKGROUND;
    __asm__ volatile("dsb\n\tisb" ::: "memory");
}
