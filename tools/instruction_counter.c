/* A plugin of QEMU (interface 1) that prints the number of executed instructions at the end, and
   each time that a process calls getppid.  With the argument `symbols=on` it also prints those of
   each function of the program at the end.  Debian ships no header of that interface, so its
   functions are declared here. */
#include <inttypes.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

typedef uint64_t plugin_id;
struct qemu_plugin_tb;
struct qemu_plugin_insn;

extern size_t qemu_plugin_tb_n_insns(const struct qemu_plugin_tb *);
extern struct qemu_plugin_insn *qemu_plugin_tb_get_insn(const struct qemu_plugin_tb *, size_t);
extern const char *qemu_plugin_insn_symbol(const struct qemu_plugin_insn *);
extern void qemu_plugin_register_vcpu_tb_trans_cb(
    plugin_id, void (*)(plugin_id, struct qemu_plugin_tb *));
extern void qemu_plugin_register_vcpu_tb_exec_inline(
    struct qemu_plugin_tb *, int operation, void *counter, uint64_t added);
extern void qemu_plugin_register_vcpu_syscall_cb(
    plugin_id, void (*)(plugin_id, unsigned, int64_t, uint64_t, uint64_t, uint64_t, uint64_t,
                        uint64_t, uint64_t, uint64_t, uint64_t));
extern void qemu_plugin_register_atexit_cb(plugin_id, void (*)(plugin_id, void *), void *);
extern void qemu_plugin_outs(const char *);

__attribute__((visibility("default"))) int qemu_plugin_version = 1;

enum { ADD_U64 = 0, GETPPID = 173, MOST_SYMBOLS = 4096 };

static struct { const char *name; uint64_t executed; } symbols[MOST_SYMBOLS];
static uint64_t executed;
static int symbol_count, by_symbol;

static void print(uint64_t count, const char *name) {
    char text[256];
    snprintf(text, sizeof text, "executed %" PRIu64 "%s%s\n", count, *name ? " in " : "", name);
    qemu_plugin_outs(text);
}

static uint64_t *counter_of(const char *name) {
    int i = 0;
    while (i < symbol_count && strcmp(symbols[i].name, name)) i++;
    if (i == MOST_SYMBOLS) return NULL;
    if (i == symbol_count) symbols[symbol_count++].name = strdup(name);
    return &symbols[i].executed;
}

static void translated(plugin_id id, struct qemu_plugin_tb *block) {
    size_t count = qemu_plugin_tb_n_insns(block);
    qemu_plugin_register_vcpu_tb_exec_inline(block, ADD_U64, &executed, count);
    if (!by_symbol || !count) return;
    const char *name = qemu_plugin_insn_symbol(qemu_plugin_tb_get_insn(block, 0));
    uint64_t *counter = name ? counter_of(name) : NULL;
    if (counter) qemu_plugin_register_vcpu_tb_exec_inline(block, ADD_U64, counter, count);
}

static void called(plugin_id id, unsigned processor, int64_t number, uint64_t a, uint64_t b,
                   uint64_t c, uint64_t d, uint64_t e, uint64_t f, uint64_t g, uint64_t h) {
    if (number == GETPPID) print(executed, "");
}

static void ended(plugin_id id, void *unused) {
    print(executed, "");
    for (int i = 0; i < symbol_count; i++) print(symbols[i].executed, symbols[i].name);
}

__attribute__((visibility("default"))) int qemu_plugin_install(
    plugin_id id, const void *info, int count, char **arguments) {
    for (int i = 0; i < count; i++) by_symbol |= !strcmp(arguments[i], "symbols=on");
    qemu_plugin_register_vcpu_tb_trans_cb(id, translated);
    qemu_plugin_register_vcpu_syscall_cb(id, called);
    qemu_plugin_register_atexit_cb(id, ended, NULL);
    return 0;
}
