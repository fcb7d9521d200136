#define _GNU_SOURCE
#include "state.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Reads one record's fields in order; `ok` turns false at the first that makes no sense. */
struct record {
    char *field[MAX_FIELDS];
    int fields, next;
    bool ok;
};

static const char *take(struct record *record)
{
    if (record->next < record->fields)
        return record->field[record->next++];
    record->ok = false;
    return "";
}

static number take_number(struct record *record)
{
    const char *text = take(record);
    if (!strcmp(text, "-"))
        return NONE;
    if (!strcmp(text, "*"))
        return ANY;
    if (!strcmp(text, "hang"))
        return HANG;
    if (!strcmp(text, "mismatch"))
        return MISMATCH;
    char *end;
    errno = 0;
    number value = strtoll(text, &end, 10);
    if (end == text || *end || errno)
        record->ok = false;
    return value;
}

static void take_text(struct record *record, char *into, size_t size)
{
    const char *text = take(record);
    size_t length = strlen(text);
    if (length < size)
        memcpy(into, text, length + 1);
    else
        record->ok = false;
}

#define TAKE_TEXT(record, into) take_text(record, into, sizeof(into))
#define TAKE_NUMBERS(record, ...)                                                      \
    do {                                                                               \
        number *into[] = {__VA_ARGS__};                                                \
        for (size_t i = 0; i < sizeof(into) / sizeof(*into); i++)                      \
            *into[i] = take_number(record);                                            \
    } while (0)

static void take_gpu(struct record *record, struct gpu *gpu)
{
    gpu->index = take_number(record);
    record->ok = record->ok && gpu->index >= 0 && gpu->index < MAX_GPUS;
    TAKE_TEXT(record, gpu->uuid);
    gpu->minor = take_number(record);
    TAKE_TEXT(record, gpu->bus_id);
    TAKE_TEXT(record, gpu->name);
    TAKE_NUMBERS(record, &gpu->architecture, &gpu->memory, &gpu->cc_major, &gpu->cc_minor);
    TAKE_NUMBERS(record, &gpu->mig_current, &gpu->mig_pending, &gpu->fabric_state);
    TAKE_TEXT(record, gpu->cluster);
    TAKE_NUMBERS(record, &gpu->clique, &gpu->fabric_status, &gpu->health_mask, &gpu->recovery);
    TAKE_NUMBERS(record, &gpu->module_id, &gpu->addressing, &gpu->lost);
}

static void take_link(struct record *record, struct link *link)
{
    TAKE_NUMBERS(record, &link->gpu, &link->link, &link->active, &link->remote_type);
    TAKE_TEXT(record, link->remote_bus_id);
}

static void take_mig(struct record *record, struct mig *mig)
{
    TAKE_NUMBERS(record, &mig->gpu, &mig->slot);
    TAKE_TEXT(record, mig->uuid);
    TAKE_NUMBERS(record, &mig->gi, &mig->ci, &mig->profile_id, &mig->start, &mig->size);
    TAKE_TEXT(record, mig->profile);
    TAKE_NUMBERS(record, &mig->memory, &mig->multiprocessors, &mig->gi_slices, &mig->ci_slices);
    TAKE_NUMBERS(record, &mig->copies, &mig->decoders, &mig->encoders, &mig->jpegs, &mig->ofas);
}

static void take_fault(struct record *record, struct fault *fault)
{
    fault->id = take_number(record);
    TAKE_TEXT(record, fault->call);
    TAKE_NUMBERS(record, &fault->gpu, &fault->code, &fault->times);
}

static void take_event(struct record *record, struct event *event)
{
    TAKE_NUMBERS(record, &event->seq, &event->gpu, &event->xid, &event->gi, &event->ci);
}

static void take_field(struct record *record, struct set_field *field)
{
    TAKE_NUMBERS(record, &field->gpu, &field->field, &field->value);
}

static void take_clocks(struct record *record, struct set_clocks *clocks)
{
    TAKE_NUMBERS(record, &clocks->gpu, &clocks->reasons);
}

static bool parse_line(struct state *state, char *line)
{
    struct record record = {.ok = true};
    for (char *rest = line; rest && record.fields < MAX_FIELDS;)
        record.field[record.fields++] = strsep(&rest, "\t");
    const char *kind = take(&record);
    if (!strcmp(kind, "driver")) {
        state->loaded = take_number(&record);
        TAKE_TEXT(&record, state->driver_version);
        TAKE_TEXT(&record, state->nvml_version);
        state->cuda = take_number(&record);
    } else if (!strcmp(kind, "gpu") && state->gpus < MAX_GPUS) {
        take_gpu(&record, &state->gpu[state->gpus++]);
    } else if (!strcmp(kind, "link") && state->links < MAX_LINKS) {
        take_link(&record, &state->link[state->links++]);
    } else if (!strcmp(kind, "mig") && state->migs < MAX_MIGS) {
        take_mig(&record, &state->mig[state->migs++]);
    } else if (!strcmp(kind, "fault") && state->faults < MAX_FAULTS) {
        take_fault(&record, &state->fault[state->faults++]);
    } else if (!strcmp(kind, "event") && state->events < MAX_EVENTS) {
        take_event(&record, &state->event[state->events++]);
    } else if (!strcmp(kind, "field") && state->set_fields < MAX_SET) {
        take_field(&record, &state->set_field[state->set_fields++]);
    } else if (!strcmp(kind, "clocks") && state->set_clocks < MAX_SET) {
        take_clocks(&record, &state->set_clock[state->set_clocks++]);
    } else {
        return false;
    }
    return record.ok && record.next == record.fields;
}

bool parse_state(struct state *state, char *text, const char *path)
{
    memset(state, 0, sizeof(*state));
    char *rest = text;
    const char *first = strsep(&rest, "\n");
    bool ok = !strcmp(first, "gpuplugin-nvml-state\t1");
    int line_number = 1;
    while (ok && rest) {
        char *line = strsep(&rest, "\n");
        line_number++;
        ok = !*line || parse_line(state, line);
    }
    if (!ok)
        fprintf(stderr, "libnvidia-ml stand-in: %s: line %d makes no sense\n", path, line_number);
    return ok;
}

struct gpu *gpu_by_index(struct state *state, number index)
{
    for (int i = 0; i < state->gpus; i++)
        if (state->gpu[i].index == index)
            return &state->gpu[i];
    return NULL;
}

struct link *link_of(struct state *state, const struct gpu *gpu, number link)
{
    for (int i = 0; i < state->links; i++)
        if (state->link[i].gpu == gpu->index && state->link[i].link == link)
            return &state->link[i];
    return NULL;
}

struct mig *mig_by_ids(struct state *state, number gpu, number gi, number ci)
{
    for (int i = 0; i < state->migs; i++) {
        struct mig *mig = &state->mig[i];
        if (mig->gpu == gpu && mig->gi == gi && (ci == ANY || mig->ci == ci))
            return mig;
    }
    return NULL;
}

struct mig *mig_by_slot(struct state *state, const struct gpu *gpu, number slot)
{
    for (int i = 0; i < state->migs; i++)
        if (state->mig[i].gpu == gpu->index && state->mig[i].slot == slot)
            return &state->mig[i];
    return NULL;
}
