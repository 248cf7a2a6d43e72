/* Threads that run NAME together; NAME_pool.h describes them. */
#define _POSIX_C_SOURCE 200809L
#include <errno.h>
#include "NAME_pool.h"

/* A thread looks so often whether the others came, some tens of microseconds, before it sleeps. */
enum { LOOKS = 2000 };

static void rest(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("isb");
#endif
}

/* Returns once all threads of the pool are in it. */
static void wait_for_all(void *user)
{
    NAME_pool *pool = (NAME_pool *)user;
    const unsigned round = __atomic_load_n(&pool->round, __ATOMIC_ACQUIRE);
    int look;
    if (__atomic_add_fetch(&pool->arrived, 1, __ATOMIC_ACQ_REL)
        == __atomic_load_n(&pool->parts, __ATOMIC_RELAXED)) {
        __atomic_store_n(&pool->arrived, 0, __ATOMIC_RELAXED);
        pthread_mutex_lock(&pool->lock);
        __atomic_store_n(&pool->round, round + 1, __ATOMIC_RELEASE);
        pthread_cond_broadcast(&pool->next);
        pthread_mutex_unlock(&pool->lock);
        return;
    }
    for (look = 0; look < LOOKS; look++) {
        if (__atomic_load_n(&pool->round, __ATOMIC_ACQUIRE) != round)
            return;
        rest();
    }
    pthread_mutex_lock(&pool->lock);
    while (__atomic_load_n(&pool->round, __ATOMIC_ACQUIRE) == round)
        pthread_cond_wait(&pool->next, &pool->lock);
    pthread_mutex_unlock(&pool->lock);
}

static void run_part(NAME_pool *pool, int part)
{
    const int result = NAME_run_partLEVEL_SUFFIX(LEVEL_ARGUMENTpool->arena, WEIGHTS_ARGUMENTpool->inputs,
                                    pool->outputs, part, pool->parts, wait_for_all, pool);
    if (result)
        __atomic_store_n(&pool->result, result, __ATOMIC_RELAXED);
    wait_for_all(pool);
}

static void *work(void *user)
{
    NAME_pool *pool = (NAME_pool *)user;
    const int part = __atomic_add_fetch(&pool->numbered, 1, __ATOMIC_RELAXED);
    for (;;) {
        wait_for_all(pool);
        if (pool->stops)
            return NULL;
        run_part(pool, part);
    }
}

/* Ends so many threads, the caller being another one. */
static void stop(NAME_pool *pool, int others)
{
    int i;
    pool->stops = 1;
    wait_for_all(pool);
    for (i = 0; i < others; i++)
        pthread_join(pool->others[i], NULL);
    pthread_cond_destroy(&pool->next);
    pthread_mutex_destroy(&pool->lock);
}

int NAME_pool_start(NAME_pool *pool, int threads)
{
    int i, error;
    if (threads < 1 || threads > UPPER_POOL_MOST)
        return EINVAL;
    pool->round = 0;
    pool->arrived = pool->numbered = pool->stops = pool->result = 0;
    pool->parts = threads;LEVEL_START
    if ((error = pthread_mutex_init(&pool->lock, NULL)))
        return error;
    if ((error = pthread_cond_init(&pool->next, NULL))) {
        pthread_mutex_destroy(&pool->lock);
        return error;
    }
    for (i = 0; i < threads - 1; i++) {
        if ((error = pthread_create(&pool->others[i], NULL, work, pool))) {
            __atomic_store_n(&pool->parts, i + 1, __ATOMIC_RELAXED); /* the caller arrives last */
            stop(pool, i);
            return error;
        }
    }
    return 0;
}

int NAME_pool_run(NAME_pool *pool, void *arena, WEIGHTS_PARAMETERconst void *const *inputs,
                  void *const *outputs)
{
    pool->arena = arena;WEIGHTS_START
    pool->inputs = inputs;
    pool->outputs = outputs;
    pool->result = UPPER_OK;
    wait_for_all(pool);
    run_part(pool, 0);
    return pool->result;
}

void NAME_pool_stop(NAME_pool *pool)
{
    stop(pool, pool->parts - 1);
}
