/* A plugin of QEMU (interface 1) that prints the number of executed instructions.  Debian ships no
   header of that interface, so its functions are declared here. */
#include <inttypes.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

typedef uint64_t plugin_id;
struct qemu_plugin_tb;

extern size_t qemu_plugin_tb_n_insns(const struct qemu_plugin_tb *);
extern void qemu_plugin_register_vcpu_tb_trans_cb(
    plugin_id, void (*)(plugin_id, struct qemu_plugin_tb *));
extern void qemu_plugin_register_vcpu_tb_exec_inline(
    struct qemu_plugin_tb *, int operation, void *counter, uint64_t added);
extern void qemu_plugin_register_atexit_cb(plugin_id, void (*)(plugin_id, void *), void *);
extern void qemu_plugin_outs(const char *);

__attribute__((visibility("default"))) int qemu_plugin_version = 1;

static uint64_t executed;
enum { ADD_U64 = 0 };

static void translated(plugin_id id, struct qemu_plugin_tb *block) {
    qemu_plugin_register_vcpu_tb_exec_inline(
        block, ADD_U64, &executed, qemu_plugin_tb_n_insns(block));
}

static void ended(plugin_id id, void *unused) {
    char text[64];
    snprintf(text, sizeof text, "executed %" PRIu64 "\n", executed);
    qemu_plugin_outs(text);
}

__attribute__((visibility("default"))) int qemu_plugin_install(
    plugin_id id, const void *info, int count, char **arguments) {
    qemu_plugin_register_vcpu_tb_trans_cb(id, translated);
    qemu_plugin_register_atexit_cb(id, ended, NULL);
    return 0;
}
