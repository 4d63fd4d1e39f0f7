/*
 * A plugin of QEMU's that counts the instructions a machine executes, into a
 * file that may be read at any time: one little-endian uint64 for each
 * processor. Declared here is what it uses of QEMU's interface for plugins,
 * version 1 (QEMU, docs/devel/tcg-plugins.rst), as Debian packages no header.
 *
 * A block that an interrupt or a fault leaves early counts as a whole.
 */
#include <fcntl.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

struct qemu_plugin_tb;
typedef void (*translated)(uint64_t id, struct qemu_plugin_tb *block);
typedef void (*executed)(unsigned int processor, void *data);
extern void qemu_plugin_register_vcpu_tb_trans_cb(uint64_t id, translated);
extern void qemu_plugin_register_vcpu_tb_exec_cb(struct qemu_plugin_tb *, executed, int flags, void *data);
extern size_t qemu_plugin_tb_n_insns(const struct qemu_plugin_tb *);

int qemu_plugin_version = 1;

enum { processors = 64 };

/* Each processor has a thread of its own, and its own counter. */
static volatile uint64_t *counters;

static void count(unsigned int processor, void *instructions)
{
	if (processor < processors)
		counters[processor] += (uintptr_t)instructions;
}

static void translate(uint64_t id, struct qemu_plugin_tb *block)
{
	(void)id;
	qemu_plugin_register_vcpu_tb_exec_cb(block, count, 0,
		(void *)(uintptr_t)qemu_plugin_tb_n_insns(block));
}

/* The only argument is counters=NAME. */
int qemu_plugin_install(uint64_t id, const void *info, int argc, char **argv)
{
	const size_t size = processors * sizeof *counters;
	int fd;

	(void)info;
	if (argc != 1 || strncmp(argv[0], "counters=", 9) != 0)
		return -1;
	fd = open(argv[0] + 9, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
	if (fd < 0 || ftruncate(fd, size) != 0)
		return -1;
	counters = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (counters == MAP_FAILED)
		return -1;
	qemu_plugin_register_vcpu_tb_trans_cb(id, translate);
	return 0;
}
