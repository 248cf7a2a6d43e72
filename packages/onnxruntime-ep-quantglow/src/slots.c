/* Memory of running calls between these: in slots that calls empty and fill by atomic exchanges. */
#include "quantglow_ep.h"

void *qg_take_idle(QgIdle *idle) {
  for (size_t i = 0; i < QG_MOST_IDLE; i++) {
    if (__atomic_load_n(&idle->slots[i], __ATOMIC_RELAXED) == NULL) continue;
    void *memory = __atomic_exchange_n(&idle->slots[i], NULL, __ATOMIC_ACQUIRE);
    if (memory != NULL) return memory;
  }
  return NULL;
}

int qg_give_idle(QgIdle *idle, void *memory) {
  for (size_t i = 0; i < QG_MOST_IDLE; i++) {
    void *empty = NULL;
    if (__atomic_compare_exchange_n(&idle->slots[i], &empty, memory, 0, __ATOMIC_RELEASE,
                                    __ATOMIC_RELAXED))
      return 1;
  }
  return 0;
}
