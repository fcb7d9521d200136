/* The state file of a simulated machine, as gpuplugin/sim/snapshot.py defines it, in memory. */
#ifndef STANDIN_STATE_H
#define STANDIN_STATE_H

#include <stdbool.h>

#pragma GCC visibility push(hidden) /* callers of the library see NVML and nothing else */

enum {
    NONE = -1, /* "-": none, or not supported */
    ANY = -2,  /* "*" */
    HANG = -3,
    MISMATCH = 2,
    MAX_FIELDS = 24,
    MAX_GPUS = 64,
    MAX_MIGS = 8 * MAX_GPUS,
    MAX_LINKS = 36 * MAX_GPUS,
    MAX_FAULTS = 256,
    MAX_EVENTS = 1024,
    MAX_SET = 256,
    MAX_FILE = 1 << 20
};

typedef long long number;

struct gpu {
    number index, minor, architecture, memory, cc_major, cc_minor, mig_current, mig_pending;
    number fabric_state, clique, fabric_status, health_mask, recovery, module_id, addressing, lost;
    char uuid[96], bus_id[32], name[96], cluster[33];
};

struct link {
    number gpu, link, active, remote_type;
    char remote_bus_id[32];
};

struct mig {
    number gpu, slot, gi, ci, profile_id, start, size, memory, multiprocessors, gi_slices, ci_slices;
    number copies, decoders, encoders, jpegs, ofas;
    char uuid[128], profile[32];
};

struct fault {
    number id, gpu, code, times;
    char call[64];
};

struct event {
    number seq, gpu, xid, gi, ci;
};

struct set_field {
    number gpu, field, value;
};

struct set_clocks {
    number gpu, reasons;
};

struct state {
    number loaded, cuda;
    char driver_version[80], nvml_version[80];
    int gpus, links, migs, faults, events, set_fields, set_clocks;
    struct gpu gpu[MAX_GPUS];
    struct link link[MAX_LINKS];
    struct mig mig[MAX_MIGS];
    struct fault fault[MAX_FAULTS];
    struct event event[MAX_EVENTS];
    struct set_field set_field[MAX_SET];
    struct set_clocks set_clock[MAX_SET];
};

/* Fills `state` from the file's text, which is taken apart; says on stderr which line makes no sense. */
bool parse_state(struct state *state, char *text, const char *path);

struct gpu *gpu_by_index(struct state *state, number index);

struct link *link_of(struct state *state, const struct gpu *gpu, number link);

/* The MIG device with these ids; ANY compute instance stands for the first. */
struct mig *mig_by_ids(struct state *state, number gpu, number gi, number ci);

struct mig *mig_by_slot(struct state *state, const struct gpu *gpu, number slot);

#pragma GCC visibility pop

#endif
