/* A libnvidia-ml.so.1 for tests: NVML's real ABI over the state file of a simulated machine.
 *
 * Why in C: programs that nobody can patch (a daemon in a container, nvidia-smi's like) load it by its name, the true
 * loader, calling convention and threads are exercised, and device nodes are opened as the driver's library does, so
 * that the device cgroup has its say. The file's form is defined in gpuplugin/sim/snapshot.py.
 *
 * GPUPLUGIN_NVML_STATE  the state file, replaced by rename and never edited
 * GPUPLUGIN_NVML_DEV    the folder of nvidiactl and nvidia<minor>; /dev when unset
 *
 * What the state file says nothing about (clocks, ECC, profiles, changes of any kind) is left out: a caller then finds
 * no such function, as with an old driver.
 */
#define _GNU_SOURCE
#include "abi.h"
#include "state.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/* ---- the library ---- */

enum { MAX_SETS = 64 };

struct event_set {
    bool used, closing;
    unsigned int serial;
    int waiters;
    int changes; /* inotify on the state file's folder, or -1: then look every millisecond */
    int wake;    /* eventfd, written when the set is freed or the library shut down */
    number last_seq;
    bool watched[MAX_GPUS];
};

static struct {
    pthread_mutex_t lock; /* never held while a call hangs or waits */
    unsigned int users;
    unsigned int generation; /* in every handle: those from before a shutdown are void */
    char path[PATH_MAX], devices[PATH_MAX];
    int state_fd; /* of the file that was read: kept open, so that its inode number is not given to the next one */
    struct stat seen;
    struct state *now, *spare;
    char *text;
    int control_fd, gpu_fd[MAX_GPUS];
    struct event_set set[MAX_SETS];
    unsigned int serial;
    struct {
        number id, times;
    } fired[MAX_FAULTS];
    int fireds;
} library = {.lock = PTHREAD_MUTEX_INITIALIZER, .state_fd = -1, .control_fd = -1};

static int64_t now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static void close_fd(int *fd)
{
    if (*fd >= 0)
        close(*fd);
    *fd = -1;
}

static ssize_t read_all(int fd, char *into, size_t size)
{
    size_t length = 0;
    for (;;) {
        ssize_t got = read(fd, into + length, size - length);
        if (got <= 0)
            return got < 0 ? -1 : (ssize_t)length;
        length += (size_t)got;
        if (length == size)
            return -1;
    }
}

/* Takes the state file in again if it is another than the one that was read. */
static nvmlReturn_t refresh(void)
{
    struct stat there;
    if (library.state_fd >= 0 && !stat(library.path, &there) && there.st_ino == library.seen.st_ino &&
        there.st_dev == library.seen.st_dev)
        return NVML_SUCCESS;
    int fd = open(library.path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        fprintf(stderr, "libnvidia-ml stand-in: %s: %s\n", library.path, strerror(errno));
        return NVML_ERROR_UNKNOWN;
    }
    ssize_t length = read_all(fd, library.text, MAX_FILE - 1);
    if (length >= 0 && !fstat(fd, &there)) {
        library.text[length] = '\0';
        if (parse_state(library.spare, library.text, library.path)) {
            struct state *old = library.now;
            library.now = library.spare;
            library.spare = old;
            close_fd(&library.state_fd);
            library.state_fd = fd;
            library.seen = there;
            return NVML_SUCCESS;
        }
    }
    close(fd);
    return NVML_ERROR_UNKNOWN;
}

/* ---- handles: kind, generation, and up to three numbers ---- */

enum kind { DEVICE = 1, MIG_DEVICE, GPU_INSTANCE, EVENT_SET };

struct parts {
    enum kind kind;
    unsigned int a, b, c; /* GPU's index, GPU instance, compute instance; or an event set's place and serial number */
};

static void *encode(enum kind kind, number a, number b, number c)
{
    return (void *)((uintptr_t)kind << 60 | (uintptr_t)(library.generation & 0xfff) << 48 |
                    (uintptr_t)(a & 0xffff) << 32 | (uintptr_t)(b & 0xffff) << 16 | (uintptr_t)(c & 0xffff));
}

static bool decode(const void *handle, struct parts *parts)
{
    uintptr_t bits = (uintptr_t)handle;
    *parts = (struct parts){bits >> 60, bits >> 32 & 0xffff, bits >> 16 & 0xffff, bits & 0xffff};
    return (bits >> 48 & 0xfff) == (library.generation & 0xfff);
}

/* What a call is about; `mig` only for handles of MIG devices and instances. */
struct target {
    struct gpu *gpu;
    struct mig *mig;
};

static nvmlReturn_t resolve(const void *handle, enum kind kind, struct target *at)
{
    struct parts parts;
    *at = (struct target){0};
    if (!handle)
        return NVML_SUCCESS;
    if (!decode(handle, &parts) || (parts.kind != kind && !(kind == DEVICE && parts.kind == MIG_DEVICE)))
        return NVML_ERROR_INVALID_ARGUMENT;
    at->gpu = gpu_by_index(library.now, parts.a);
    if (at->gpu && parts.kind != DEVICE)
        at->mig = mig_by_ids(library.now, parts.a, parts.b, parts.kind == GPU_INSTANCE ? ANY : (number)parts.c);
    if (at->gpu && !at->mig && parts.kind != DEVICE)
        return NVML_ERROR_NOT_FOUND; /* destroyed since */
    return at->gpu ? NVML_SUCCESS : NVML_ERROR_INVALID_ARGUMENT;
}

/* ---- faults ---- */

/* The length of a call's name without its version: a fault of nvmlEventSetWait is one of all its versions. */
static size_t stem(const char *call)
{
    size_t length = strlen(call);
    if (length > 3 && call[length - 3] == '_' && call[length - 2] == 'v')
        return length - 3;
    return length;
}

static bool same_call(const char *one, const char *other)
{
    return stem(one) == stem(other) && !strncmp(one, other, stem(one));
}

/* Counts a firing; false when the fault has fired as often as it may in this process. */
static bool may_fire(const struct fault *fault)
{
    if (fault->times < 0)
        return true;
    int i = 0;
    while (i < library.fireds && library.fired[i].id != fault->id)
        i++;
    if (i == MAX_FAULTS)
        return false;
    if (i == library.fireds) {
        library.fired[i].id = fault->id;
        library.fired[i].times = 0;
        library.fireds++;
    }
    return library.fired[i].times++ < fault->times;
}

static number fault_of(const char *call, const struct gpu *gpu)
{
    for (int i = 0; i < library.now->faults; i++) {
        const struct fault *fault = &library.now->fault[i];
        bool here = fault->gpu == ANY || (gpu && fault->gpu == gpu->index);
        if (here && same_call(fault->call, call) && may_fire(fault))
            return fault->code;
    }
    return NVML_SUCCESS;
}

/* Refreshes, finds what the call is about and lets faults act; the lock is let go while the call hangs. */
static nvmlReturn_t prepare(const char *call, const void *handle, enum kind kind, struct target *at)
{
    const unsigned int generation = library.generation;
    for (;;) {
        nvmlReturn_t code = refresh();
        if (code == NVML_SUCCESS)
            code = resolve(handle, kind, at);
        if (code != NVML_SUCCESS)
            return code;
        number fault = fault_of(call, at->gpu);
        if (fault != HANG)
            return (nvmlReturn_t)fault;
        pthread_mutex_unlock(&library.lock);
        usleep(1000);
        pthread_mutex_lock(&library.lock);
        if (library.generation != generation)
            return NVML_ERROR_UNINITIALIZED;
    }
}

/* Every call is between enter() and leave(), with the lock held; it goes on only where enter() gives success. */
static nvmlReturn_t enter(const char *call, const void *handle, enum kind kind, struct target *at)
{
    pthread_mutex_lock(&library.lock);
    return library.users ? prepare(call, handle, kind, at) : NVML_ERROR_UNINITIALIZED;
}

static nvmlReturn_t leave(nvmlReturn_t code)
{
    pthread_mutex_unlock(&library.lock);
    return code;
}

/* enter() for what a GPU is asked: a lost one answers nothing. */
static nvmlReturn_t enter_gpu(const char *call, const void *handle, enum kind kind, struct target *at)
{
    nvmlReturn_t code = enter(call, handle, kind, at);
    if (code == NVML_SUCCESS && !at->gpu)
        return NVML_ERROR_INVALID_ARGUMENT;
    return code == NVML_SUCCESS && at->gpu->lost ? NVML_ERROR_GPU_IS_LOST : code;
}

/* ---- device nodes ---- */

/* Opens a node and keeps it: only that the kernel lets us counts, there need not be a driver behind it. */
static nvmlReturn_t open_node(const char *name, int *fd, nvmlReturn_t when_missing)
{
    char path[PATH_MAX + 32];
    if (*fd >= 0)
        return NVML_SUCCESS;
    snprintf(path, sizeof(path), "%s/%s", library.devices, name);
    *fd = open(path, O_RDWR | O_CLOEXEC);
    if (*fd >= 0 || errno == ENXIO || errno == ENODEV)
        return NVML_SUCCESS;
    if (errno == EPERM || errno == EACCES)
        return NVML_ERROR_NO_PERMISSION;
    return errno == ENOENT ? when_missing : NVML_ERROR_OPERATING_SYSTEM;
}

static nvmlReturn_t give_device(const struct gpu *gpu, nvmlDevice_t *device)
{
    char name[40];
    nvmlReturn_t code = NVML_SUCCESS;
    if (gpu->minor != NONE) {
        snprintf(name, sizeof(name), "nvidia%lld", gpu->minor);
        code = open_node(name, &library.gpu_fd[gpu->index], NVML_ERROR_NOT_FOUND);
    }
    if (code == NVML_SUCCESS)
        *device = encode(DEVICE, gpu->index, 0, 0);
    return code;
}

/* ---- life cycle ---- */

static void release_set(struct event_set *set)
{
    if (set->waiters)
        return;
    close_fd(&set->changes);
    close_fd(&set->wake);
    set->used = false;
}

static void close_set(struct event_set *set)
{
    set->closing = true;
    if (eventfd_write(set->wake, 1))
        perror("libnvidia-ml stand-in: eventfd");
    release_set(set);
}

static void close_everything(void)
{
    for (int i = 0; i < MAX_SETS; i++)
        if (library.set[i].used && !library.set[i].closing)
            close_set(&library.set[i]);
    for (int i = 0; i < MAX_GPUS; i++)
        close_fd(&library.gpu_fd[i]);
    close_fd(&library.control_fd);
    close_fd(&library.state_fd);
    library.generation++;
}

static nvmlReturn_t find_files(void)
{
    const char *path = getenv("GPUPLUGIN_NVML_STATE");
    const char *devices = getenv("GPUPLUGIN_NVML_DEV");
    if (!path) {
        fputs("libnvidia-ml stand-in: GPUPLUGIN_NVML_STATE is not set\n", stderr);
        return NVML_ERROR_UNKNOWN;
    }
    if (strcmp(path, library.path)) {
        library.fireds = 0; /* another machine, other faults */
        snprintf(library.path, sizeof(library.path), "%s", path);
    }
    snprintf(library.devices, sizeof(library.devices), "%s", devices && *devices ? devices : "/dev");
    return NVML_SUCCESS;
}

static nvmlReturn_t start(void)
{
    if (!library.text) {
        library.text = malloc(MAX_FILE);
        library.now = calloc(1, sizeof(struct state));
        library.spare = calloc(1, sizeof(struct state));
        if (!library.text || !library.now || !library.spare)
            abort();
        for (int i = 0; i < MAX_GPUS; i++)
            library.gpu_fd[i] = -1;
    }
    struct target at;
    nvmlReturn_t code = find_files();
    if (code == NVML_SUCCESS)
        code = prepare("nvmlInit", NULL, DEVICE, &at);
    if (code == NVML_SUCCESS && library.now->loaded == MISMATCH)
        code = NVML_ERROR_LIB_RM_VERSION_MISMATCH;
    if (code == NVML_SUCCESS && !library.now->loaded)
        code = NVML_ERROR_DRIVER_NOT_LOADED;
    if (code == NVML_SUCCESS)
        code = open_node("nvidiactl", &library.control_fd, NVML_ERROR_DRIVER_NOT_LOADED);
    if (code != NVML_SUCCESS)
        close_everything();
    return code;
}

nvmlReturn_t nvmlInitWithFlags(unsigned int flags)
{
    (void)flags;
    pthread_mutex_lock(&library.lock);
    nvmlReturn_t code = library.users ? NVML_SUCCESS : start();
    if (code == NVML_SUCCESS)
        library.users++;
    return leave(code);
}

nvmlReturn_t nvmlInit_v2(void)
{
    return nvmlInitWithFlags(0);
}

nvmlReturn_t nvmlInit(void)
{
    return nvmlInitWithFlags(0);
}

nvmlReturn_t nvmlShutdown(void)
{
    struct target at;
    nvmlReturn_t code = enter(__func__, NULL, DEVICE, &at);
    if (code == NVML_SUCCESS && --library.users == 0)
        close_everything();
    return leave(code);
}

const char *nvmlErrorString(nvmlReturn_t code)
{
    static const char *const texts[] = {
        "Success", "Uninitialized", "Invalid Argument", "Not Supported", "Insufficient Permissions",
        "Already Initialized", "Not Found", "Insufficient Size", "Insufficient External Power", "Driver Not Loaded",
        "Timeout", "Interrupt Request Issue", "NVML Shared Library Not Found", "Function Not Found",
        "Corrupted infoROM", "GPU is lost", "GPU requires reset", "The operating system has blocked the request",
        "Driver/library version mismatch",
    };
    return code < sizeof(texts) / sizeof(*texts) ? texts[code] : "Unknown Error";
}

/* ---- answers ---- */

/* Defines a call: `answer`, its return code, is worked out with the lock held and `at` saying what it is about. */
#define DEFINE(function, parameters, enter_it, answer)                                 \
    nvmlReturn_t function parameters                                                   \
    {                                                                                  \
        struct target at;                                                              \
        nvmlReturn_t code = enter_it;                                                  \
        return leave(code ? code : (answer));                                          \
    }
#define ASK(function, parameters, answer) DEFINE(function, parameters, enter(#function, NULL, DEVICE, &at), answer)
#define ASK_GPU(function, kind, parameters, answer)                                    \
    DEFINE(function, parameters, enter_gpu(#function, handle, kind, &at), answer)

static nvmlReturn_t give_text(const char *text, char *into, unsigned int size)
{
    if (strlen(text) >= size)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    strcpy(into, text);
    return NVML_SUCCESS;
}

static nvmlReturn_t give(number value, void *unsigned_or_int)
{
    if (value == NONE)
        return NVML_ERROR_NOT_SUPPORTED;
    *(unsigned int *)unsigned_or_int = (unsigned int)value;
    return NVML_SUCCESS;
}

static nvmlReturn_t give_two(number one, number other, void *into_one, void *into_other)
{
    nvmlReturn_t code = give(one, into_one);
    return code ? code : give(other, into_other);
}

static nvmlReturn_t give_handle(void *handle, void *into)
{
    if (!handle)
        return NVML_ERROR_NOT_FOUND;
    memcpy(into, &handle, sizeof(handle));
    return NVML_SUCCESS;
}

ASK(nvmlSystemGetDriverVersion, (char *into, unsigned int size), give_text(library.now->driver_version, into, size))
ASK(nvmlSystemGetNVMLVersion, (char *into, unsigned int size), give_text(library.now->nvml_version, into, size))
ASK(nvmlSystemGetCudaDriverVersion, (int *version), give(library.now->cuda, version))
ASK(nvmlSystemGetCudaDriverVersion_v2, (int *version), give(library.now->cuda, version))
ASK(nvmlDeviceGetCount_v2, (unsigned int *count), give(library.now->gpus, count))

/* ---- finding GPUs ---- */

static nvmlPciInfo_t pci_info(const char *bus_id)
{
    nvmlPciInfo_t pci = {0};
    if (sscanf(bus_id, "%x:%x:%x", &pci.domain, &pci.bus, &pci.device) == 3) {
        snprintf(pci.busId, sizeof(pci.busId), "%08X:%02X:%02X.0", pci.domain, pci.bus & 0xff, pci.device & 0x1f);
        snprintf(pci.busIdLegacy, sizeof(pci.busIdLegacy), "%04X:%02X:%02X.0", pci.domain & 0xffff, pci.bus & 0xff,
                 pci.device & 0x1f);
    }
    return pci;
}

static nvmlReturn_t give_pci(const char *bus_id, nvmlPciInfo_t *pci)
{
    *pci = pci_info(bus_id);
    return *pci->busId ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
}

static void *find_by_uuid(const char *uuid)
{
    for (int i = 0; i < library.now->gpus; i++)
        if (!strcmp(library.now->gpu[i].uuid, uuid))
            return encode(DEVICE, library.now->gpu[i].index, 0, 0);
    for (int i = 0; i < library.now->migs; i++) {
        const struct mig *mig = &library.now->mig[i];
        if (!strcmp(mig->uuid, uuid))
            return encode(MIG_DEVICE, mig->gpu, mig->gi, mig->ci);
    }
    return NULL;
}

static void *find_by_bus_id(const char *bus_id)
{
    const nvmlPciInfo_t wanted = pci_info(bus_id);
    for (int i = 0; i < library.now->gpus; i++)
        if (!strcmp(pci_info(library.now->gpu[i].bus_id).busId, wanted.busId))
            return encode(DEVICE, library.now->gpu[i].index, 0, 0);
    return NULL;
}

static nvmlReturn_t enter_index(unsigned int index, struct target *at)
{
    pthread_mutex_lock(&library.lock);
    if (!library.users)
        return NVML_ERROR_UNINITIALIZED;
    return prepare("nvmlDeviceGetHandleByIndex", encode(DEVICE, index, 0, 0), DEVICE, at);
}

static nvmlReturn_t enter_found(const char *call, void *(*find)(const char *), const char *key, struct target *at)
{
    pthread_mutex_lock(&library.lock);
    nvmlReturn_t code = library.users ? refresh() : NVML_ERROR_UNINITIALIZED;
    code = code ? code : prepare(call, find(key), DEVICE, at);
    if (code == NVML_SUCCESS && !at->gpu)
        return NVML_ERROR_NOT_FOUND;
    return code == NVML_SUCCESS && at->gpu->lost ? NVML_ERROR_GPU_IS_LOST : code;
}

static nvmlReturn_t give_found(const struct target *at, nvmlDevice_t *device)
{
    const struct mig *mig = at->mig;
    return mig ? give_handle(encode(MIG_DEVICE, mig->gpu, mig->gi, mig->ci), device) : give_device(at->gpu, device);
}

DEFINE(nvmlDeviceGetHandleByIndex_v2, (unsigned int index, nvmlDevice_t *device), enter_index(index, &at),
       give_device(at.gpu, device))
DEFINE(nvmlDeviceGetHandleByUUID, (const char *uuid, nvmlDevice_t *device),
       enter_found("nvmlDeviceGetHandleByUUID", find_by_uuid, uuid, &at), give_found(&at, device))
DEFINE(nvmlDeviceGetHandleByPciBusId_v2, (const char *bus_id, nvmlDevice_t *device),
       enter_found("nvmlDeviceGetHandleByPciBusId", find_by_bus_id, bus_id, &at), give_found(&at, device))

/* ---- one GPU, or one MIG device ---- */

static nvmlReturn_t give_name(const struct target *at, char *into, unsigned int size)
{
    char text[sizeof(at->gpu->name) + sizeof(at->mig->profile) + 8];
    snprintf(text, sizeof(text), at->mig ? "%s MIG %s" : "%s", at->gpu->name, at->mig ? at->mig->profile : "");
    return give_text(text, into, size);
}

static nvmlReturn_t give_memory(const struct target *at, nvmlMemory_t *memory)
{
    number total = at->mig ? at->mig->memory : at->gpu->memory;
    if (total == NONE)
        return NVML_ERROR_NOT_SUPPORTED;
    *memory = (nvmlMemory_t){.total = (unsigned long long)total, .free = (unsigned long long)total};
    return NVML_SUCCESS;
}

static nvmlReturn_t give_memory_v2(const struct target *at, nvmlMemory_v2_t *memory)
{
    nvmlMemory_t sizes;
    if (memory->version != MEMORY_V2)
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    nvmlReturn_t code = give_memory(at, &sizes);
    if (code == NVML_SUCCESS)
        *memory = (nvmlMemory_v2_t){.version = MEMORY_V2, .total = sizes.total, .free = sizes.free};
    return code;
}

static nvmlReturn_t give_temperature(unsigned int sensor, void *into)
{
    return sensor ? NVML_ERROR_INVALID_ARGUMENT : give(ROOM_TEMPERATURE, into);
}

static nvmlReturn_t give_temperature_v(nvmlTemperature_t *into)
{
    if (into->version != TEMPERATURE_V1)
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    return give_temperature(into->sensorType, &into->temperature);
}

static nvmlReturn_t give_addressing_mode(const struct gpu *gpu, nvmlDeviceAddressingMode_t *mode)
{
    return mode->version == ADDRESSING_MODE_V1 ? give(gpu->addressing, &mode->value)
                                               : NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
}

static number milliwatts(const struct gpu *gpu)
{
    return 70000 + 1000 * (gpu->index % 8);
}

static bool has_links(const struct gpu *gpu)
{
    for (int i = 0; i < library.now->links; i++)
        if (library.now->link[i].gpu == gpu->index)
            return true;
    return false;
}

/* The same numbers as the Python double's: steady, and by them GPUs can be told apart. */
static number field(const struct gpu *gpu, unsigned int id)
{
    switch (id) {
    case FIELD_RECOVERY_ACTION:
        return gpu->recovery;
    case 3 ... 6: case 29 ... 31: case 74 ... 79: case 94: case 95:
        return 0;
    case 38: case 45: case 52: case 59:
        return has_links(gpu) ? 0 : NONE;
    case 82:
        return ROOM_TEMPERATURE + 6;
    case 83:
        return milliwatts(gpu) * 3600;
    case 138: case 139:
        return has_links(gpu) ? 1000 * (gpu->index + 1) : NONE;
    case 142 ... 145:
        return gpu->architecture > VOLTA ? 0 : NONE;
    default:
        return NONE;
    }
}

static nvmlReturn_t give_fields(const struct gpu *gpu, int count, nvmlFieldValue_t *values)
{
    for (int i = 0; i < count; i++) {
        number value = field(gpu, values[i].fieldId);
        for (int set = 0; set < library.now->set_fields; set++)
            if (library.now->set_field[set].gpu == gpu->index &&
                library.now->set_field[set].field == values[i].fieldId)
                value = library.now->set_field[set].value;
        values[i].timestamp = now_ms() * 1000;
        values[i].latencyUsec = 0;
        values[i].valueType = VALUE_UNSIGNED_INT;
        values[i].value.ullVal = value == NONE ? 0 : (unsigned long long)value;
        values[i].nvmlReturn = value == NONE ? NVML_ERROR_NOT_SUPPORTED : NVML_SUCCESS;
    }
    return NVML_SUCCESS;
}

/* ---- how a GPU is doing ---- */

static nvmlReturn_t give_clock_reasons(const struct gpu *gpu, unsigned long long *reasons)
{
    *reasons = 1; /* idle */
    for (int i = 0; i < library.now->set_clocks; i++)
        if (library.now->set_clock[i].gpu == gpu->index)
            *reasons = (unsigned long long)library.now->set_clock[i].reasons;
    return NVML_SUCCESS;
}

static nvmlReturn_t give_rates(const struct gpu *gpu, nvmlUtilization_t *rates)
{
    if (gpu->mig_current == 1)
        return NVML_ERROR_NOT_SUPPORTED;
    unsigned int place = (unsigned int)(gpu->index % 8);
    *rates = (nvmlUtilization_t){.gpu = 10 * place, .memory = 5 * place};
    return NVML_SUCCESS;
}

static nvmlReturn_t give_codec(const struct gpu *gpu, unsigned int *percent, unsigned int *period_us)
{
    return gpu->mig_current == 1 ? NVML_ERROR_NOT_SUPPORTED : give_two(0, 167000, percent, period_us);
}

/* A sample knows only whose it is; gi is ANY for a whole GPU. */
struct sample {
    number gpu, gi;
};

static nvmlReturn_t take_sample(const struct gpu *gpu, number gi, struct sample *sample)
{
    if (!sample)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (gpu->architecture < HOPPER || (gi == ANY && gpu->mig_current == 1))
        return NVML_ERROR_NOT_SUPPORTED;
    if (gi != ANY && !mig_by_ids(library.now, gpu->index, gi, ANY))
        return NVML_ERROR_NOT_FOUND;
    *sample = (struct sample){gpu->index, gi};
    return NVML_SUCCESS;
}

static nvmlReturn_t give_gpm_support(const struct gpu *gpu, nvmlGpmSupport_t *support)
{
    if (support->version != GPM_V1)
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    support->isSupportedDevice = gpu->architecture >= HOPPER;
    return NVML_SUCCESS;
}

static nvmlReturn_t new_sample(struct sample **sample)
{
    *sample = calloc(1, sizeof(**sample));
    if (!*sample)
        return NVML_ERROR_UNKNOWN;
    (*sample)->gpu = NONE;
    return NVML_SUCCESS;
}

static nvmlReturn_t free_sample(struct sample *sample)
{
    free(sample);
    return NVML_SUCCESS;
}

static nvmlReturn_t give_metrics(nvmlGpmMetricsGet_t *asked)
{
    const struct sample *one = asked->sample1, *other = asked->sample2;
    if (asked->version != GPM_V1)
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    if (!one || !other || one->gpu == NONE || one->gpu != other->gpu || one->gi != other->gi)
        return NVML_ERROR_INVALID_ARGUMENT;
    for (unsigned int i = 0; i < asked->numMetrics; i++) {
        asked->metrics[i].nvmlReturn = NVML_SUCCESS;
        asked->metrics[i].value = 10.0 + (double)one->gpu;
    }
    return NVML_SUCCESS;
}

ASK_GPU(nvmlDeviceGetCurrentClocksEventReasons, DEVICE, (nvmlDevice_t handle, unsigned long long *reasons),
        give_clock_reasons(at.gpu, reasons))
ASK_GPU(nvmlDeviceGetPowerUsage, DEVICE, (nvmlDevice_t handle, unsigned int *into), give(milliwatts(at.gpu), into))
ASK_GPU(nvmlDeviceGetClockInfo, DEVICE, (nvmlDevice_t handle, unsigned int kind, unsigned int *into),
        kind > 3 ? NVML_ERROR_INVALID_ARGUMENT : give(1980, into))
ASK_GPU(nvmlDeviceGetUtilizationRates, DEVICE, (nvmlDevice_t handle, nvmlUtilization_t *into),
        give_rates(at.gpu, into))
ASK_GPU(nvmlDeviceGetEncoderUtilization, DEVICE, (nvmlDevice_t handle, unsigned int *into, unsigned int *period),
        give_codec(at.gpu, into, period))
ASK_GPU(nvmlDeviceGetDecoderUtilization, DEVICE, (nvmlDevice_t handle, unsigned int *into, unsigned int *period),
        give_codec(at.gpu, into, period))
ASK_GPU(nvmlGpmQueryDeviceSupport, DEVICE, (nvmlDevice_t handle, nvmlGpmSupport_t *into),
        give_gpm_support(at.gpu, into))
ASK(nvmlGpmSampleAlloc, (struct sample **into), new_sample(into))
ASK(nvmlGpmSampleFree, (struct sample *sample), free_sample(sample))
ASK_GPU(nvmlGpmSampleGet, DEVICE, (nvmlDevice_t handle, struct sample *sample), take_sample(at.gpu, ANY, sample))
ASK_GPU(nvmlGpmMigSampleGet, DEVICE, (nvmlDevice_t handle, unsigned int gi, struct sample *sample),
        take_sample(at.gpu, gi, sample))
ASK(nvmlGpmMetricsGet, (nvmlGpmMetricsGet_t *asked), give_metrics(asked))

ASK_GPU(nvmlDeviceGetUUID, DEVICE, (nvmlDevice_t handle, char *into, unsigned int size),
        give_text(at.mig ? at.mig->uuid : at.gpu->uuid, into, size))
ASK_GPU(nvmlDeviceGetName, DEVICE, (nvmlDevice_t handle, char *into, unsigned int size), give_name(&at, into, size))
ASK_GPU(nvmlDeviceGetIndex, DEVICE, (nvmlDevice_t handle, unsigned int *index),
        give(at.mig ? at.mig->slot : at.gpu->index, index))
ASK_GPU(nvmlDeviceGetMinorNumber, DEVICE, (nvmlDevice_t handle, unsigned int *minor), give(at.gpu->minor, minor))
ASK_GPU(nvmlDeviceGetPciInfo_v3, DEVICE, (nvmlDevice_t handle, nvmlPciInfo_t *pci), give_pci(at.gpu->bus_id, pci))
ASK_GPU(nvmlDeviceGetArchitecture, DEVICE, (nvmlDevice_t handle, unsigned int *into), give(at.gpu->architecture, into))
ASK_GPU(nvmlDeviceGetBrand, DEVICE, (nvmlDevice_t handle, unsigned int *into),
        give(strncmp(at.gpu->name, "Tesla", 5) ? 14 : 2, into))
ASK_GPU(nvmlDeviceGetCudaComputeCapability, DEVICE, (nvmlDevice_t handle, int *major, int *minor),
        give_two(at.gpu->cc_major, at.gpu->cc_minor, major, minor))
ASK_GPU(nvmlDeviceGetModuleId, DEVICE, (nvmlDevice_t handle, unsigned int *id), give(at.gpu->module_id, id))
ASK_GPU(nvmlDeviceGetAddressingMode, DEVICE, (nvmlDevice_t handle, nvmlDeviceAddressingMode_t *into),
        give_addressing_mode(at.gpu, into))
ASK_GPU(nvmlDeviceGetMemoryInfo, DEVICE, (nvmlDevice_t handle, nvmlMemory_t *into), give_memory(&at, into))
ASK_GPU(nvmlDeviceGetMemoryInfo_v2, DEVICE, (nvmlDevice_t handle, nvmlMemory_v2_t *into), give_memory_v2(&at, into))
ASK_GPU(nvmlDeviceGetTemperature, DEVICE, (nvmlDevice_t handle, unsigned int sensor, unsigned int *into),
        give_temperature(sensor, into))
ASK_GPU(nvmlDeviceGetTemperatureV, DEVICE, (nvmlDevice_t handle, nvmlTemperature_t *into), give_temperature_v(into))
ASK_GPU(nvmlDeviceGetFieldValues, DEVICE, (nvmlDevice_t handle, int count, nvmlFieldValue_t *values),
        give_fields(at.gpu, count, values))

/* The mode is in a file of its own beside the state file: the driver keeps it, whoever reads that. */

static void mode_file(const struct gpu *gpu, const char *before, char *path, size_t size)
{
    const char *name = strrchr(library.path, '/');
    name = name ? name + 1 : library.path;
    snprintf(path, size, "%.*s%s%s.mode.%lld", (int)(name - library.path), library.path, before, name, gpu->index);
}

static nvmlReturn_t give_mode(const struct gpu *gpu, unsigned int *mode)
{
    char path[PATH_MAX + 64];
    mode_file(gpu, "", path, sizeof(path));
    FILE *file = fopen(path, "re");
    *mode = 0;
    if (!file)
        return errno == ENOENT ? NVML_SUCCESS : NVML_ERROR_UNKNOWN;
    bool ok = fscanf(file, "%u", mode) == 1;
    fclose(file);
    return ok ? NVML_SUCCESS : NVML_ERROR_UNKNOWN;
}

static nvmlReturn_t take_mode(const struct gpu *gpu, unsigned int mode)
{
    char path[PATH_MAX + 64], fresh[PATH_MAX + 64];
    if (mode > 3)
        return NVML_ERROR_INVALID_ARGUMENT;
    mode_file(gpu, "", path, sizeof(path));
    mode_file(gpu, ".new-", fresh, sizeof(fresh));
    FILE *file = fopen(fresh, "we");
    if (!file)
        return NVML_ERROR_NO_PERMISSION;
    bool ok = fprintf(file, "%u", mode) > 0;
    ok = !fclose(file) && ok && !rename(fresh, path);
    return ok ? NVML_SUCCESS : NVML_ERROR_UNKNOWN;
}

ASK_GPU(nvmlDeviceGetComputeMode, DEVICE, (nvmlDevice_t handle, unsigned int *mode), give_mode(at.gpu, mode))
ASK_GPU(nvmlDeviceSetComputeMode, DEVICE, (nvmlDevice_t handle, unsigned int mode), take_mode(at.gpu, mode))

/* No process runs on a simulated GPU. */
ASK_GPU(nvmlDeviceGetComputeRunningProcesses_v3, DEVICE, (nvmlDevice_t handle, unsigned int *count, void *infos),
        ((void)infos, give(0, count)))

/* ---- NVLink and fabric ---- */

static nvmlReturn_t give_fabric(const struct gpu *gpu, nvmlGpuFabricInfo_t *info)
{
    if (gpu->fabric_state == NONE)
        return NVML_ERROR_NOT_SUPPORTED;
    for (size_t i = 0; i < sizeof(info->clusterUuid); i++)
        if (sscanf(gpu->cluster + 2 * i, "%2hhx", &info->clusterUuid[i]) != 1)
            return NVML_ERROR_UNKNOWN;
    info->status = (unsigned int)gpu->fabric_status;
    info->cliqueId = (unsigned int)gpu->clique;
    info->state = (unsigned int)gpu->fabric_state;
    return NVML_SUCCESS;
}

static nvmlReturn_t give_fabric_v(const struct gpu *gpu, nvmlGpuFabricInfoV_t *info)
{
    if (info->version != FABRIC_V2 && info->version != FABRIC_V3)
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    info->healthMask = (unsigned int)gpu->health_mask;
    if (info->version == FABRIC_V3)
        info->healthSummary = 0; /* not supported: the state file has no summary */
    return give_fabric(gpu, &info->info);
}

/* Defines a call about one NVLink, which `answer` knows as `link`. */
#define ASK_LINK(function, output, answer)                                             \
    nvmlReturn_t function(nvmlDevice_t handle, unsigned int number_on_gpu, output)     \
    {                                                                                  \
        struct target at;                                                              \
        nvmlReturn_t code = enter_gpu(#function, handle, DEVICE, &at);                 \
        struct link *link = code ? NULL : link_of(library.now, at.gpu, number_on_gpu); \
        return leave(code ? code : link ? (answer) : NVML_ERROR_NOT_SUPPORTED);        \
    }

ASK_LINK(nvmlDeviceGetNvLinkState, unsigned int *active, give(link->active, active))
ASK_LINK(nvmlDeviceGetNvLinkRemoteDeviceType, unsigned int *type, give(link->remote_type, type))
ASK_LINK(nvmlDeviceGetNvLinkRemotePciInfo_v2, nvmlPciInfo_t *pci, give_pci(link->remote_bus_id, pci))
ASK_GPU(nvmlDeviceGetGpuFabricInfo, DEVICE, (nvmlDevice_t handle, nvmlGpuFabricInfo_t *info),
        give_fabric(at.gpu, info))
ASK_GPU(nvmlDeviceGetGpuFabricInfoV, DEVICE, (nvmlDevice_t handle, nvmlGpuFabricInfoV_t *info),
        give_fabric_v(at.gpu, info))

/* ---- MIG ---- */

static unsigned int max_mig_devices(const struct gpu *gpu)
{
    number count = gpu->mig_current == 1 ? 7 : 0;
    for (int i = 0; i < library.now->migs; i++) {
        const struct mig *mig = &library.now->mig[i];
        if (mig->gpu == gpu->index && mig->slot >= count)
            count = mig->slot + 1;
    }
    return (unsigned int)count;
}

static nvmlReturn_t give_slot(const struct gpu *gpu, unsigned int slot, nvmlDevice_t *device)
{
    const struct mig *mig = mig_by_slot(library.now, gpu, slot);
    if (gpu->mig_current == NONE)
        return NVML_ERROR_NOT_SUPPORTED;
    return give_handle(mig ? encode(MIG_DEVICE, mig->gpu, mig->gi, mig->ci) : NULL, device);
}

static nvmlReturn_t give_attributes(const struct mig *mig, nvmlDeviceAttributes_t *attributes)
{
    *attributes = (nvmlDeviceAttributes_t){
        .multiprocessorCount = (unsigned int)mig->multiprocessors,
        .sharedCopyEngineCount = (unsigned int)mig->copies,
        .sharedDecoderCount = (unsigned int)mig->decoders,
        .sharedEncoderCount = (unsigned int)mig->encoders,
        .sharedJpegCount = (unsigned int)mig->jpegs,
        .sharedOfaCount = (unsigned int)mig->ofas,
        .gpuInstanceSliceCount = (unsigned int)mig->gi_slices,
        .computeInstanceSliceCount = (unsigned int)mig->ci_slices,
        .memorySizeMB = (unsigned long long)mig->memory >> 20,
    };
    return NVML_SUCCESS;
}

static nvmlReturn_t give_instance_info(const struct mig *mig, nvmlGpuInstanceInfo_t *info)
{
    *info = (nvmlGpuInstanceInfo_t){
        .device = encode(DEVICE, mig->gpu, 0, 0),
        .id = (unsigned int)mig->gi,
        .profileId = (unsigned int)mig->profile_id,
        .placement = {(unsigned int)mig->start, (unsigned int)mig->size},
    };
    return NVML_SUCCESS;
}

ASK_GPU(nvmlDeviceGetMigMode, DEVICE, (nvmlDevice_t handle, unsigned int *current, unsigned int *pending),
        give_two(at.gpu->mig_current, at.gpu->mig_pending, current, pending))
ASK_GPU(nvmlDeviceGetMaxMigDeviceCount, DEVICE, (nvmlDevice_t handle, unsigned int *count),
        give(max_mig_devices(at.gpu), count))
ASK_GPU(nvmlDeviceGetMigDeviceHandleByIndex, DEVICE, (nvmlDevice_t handle, unsigned int slot, nvmlDevice_t *into),
        give_slot(at.gpu, slot, into))
ASK_GPU(nvmlDeviceGetDeviceHandleFromMigDeviceHandle, MIG_DEVICE, (nvmlDevice_t handle, nvmlDevice_t *device),
        give_device(at.gpu, device))
ASK_GPU(nvmlDeviceIsMigDeviceHandle, DEVICE, (nvmlDevice_t handle, unsigned int *is_mig), give(at.mig != NULL, is_mig))
ASK_GPU(nvmlDeviceGetGpuInstanceId, MIG_DEVICE, (nvmlDevice_t handle, unsigned int *id), give(at.mig->gi, id))
ASK_GPU(nvmlDeviceGetComputeInstanceId, MIG_DEVICE, (nvmlDevice_t handle, unsigned int *id), give(at.mig->ci, id))
ASK_GPU(nvmlDeviceGetAttributes_v2, MIG_DEVICE, (nvmlDevice_t handle, nvmlDeviceAttributes_t *into),
        give_attributes(at.mig, into))
ASK_GPU(nvmlDeviceGetGpuInstanceById, DEVICE, (nvmlDevice_t handle, unsigned int id, nvmlGpuInstance_t *into),
        give_handle(mig_by_ids(library.now, at.gpu->index, id, ANY) ? encode(GPU_INSTANCE, at.gpu->index, id, 0) : NULL,
                    into))
ASK_GPU(nvmlGpuInstanceGetInfo, GPU_INSTANCE, (nvmlGpuInstance_t handle, nvmlGpuInstanceInfo_t *info),
        give_instance_info(at.mig, info))

/* ---- events ---- */

static struct event_set *set_of(nvmlEventSet_t handle)
{
    struct parts parts;
    if (!decode(handle, &parts) || parts.kind != EVENT_SET || parts.a >= MAX_SETS)
        return NULL;
    struct event_set *set = &library.set[parts.a];
    return set->used && !set->closing && (set->serial & 0xffff) == parts.b ? set : NULL;
}

static int watch_folder(void)
{
    char folder[PATH_MAX];
    snprintf(folder, sizeof(folder), "%s", library.path);
    char *slash = strrchr(folder, '/');
    if (slash)
        slash[slash == folder] = '\0';
    int fd = inotify_init1(IN_CLOEXEC | IN_NONBLOCK);
    if (fd >= 0 && inotify_add_watch(fd, slash ? folder : ".", IN_MOVED_TO) < 0)
        close_fd(&fd);
    return fd;
}

nvmlReturn_t nvmlEventSetCreate(nvmlEventSet_t *handle)
{
    struct target at;
    nvmlReturn_t code = enter(__func__, NULL, DEVICE, &at);
    if (code != NVML_SUCCESS)
        return leave(code);
    int place = 0;
    while (place < MAX_SETS && library.set[place].used)
        place++;
    int wake = place < MAX_SETS ? eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK) : -1;
    if (wake < 0)
        return leave(NVML_ERROR_INSUFFICIENT_RESOURCES);
    struct event_set *set = &library.set[place];
    *set = (struct event_set){.used = true, .serial = ++library.serial, .changes = watch_folder(), .wake = wake};
    for (int i = 0; i < library.now->events; i++)
        if (library.now->event[i].seq > set->last_seq)
            set->last_seq = library.now->event[i].seq;
    *handle = encode(EVENT_SET, place, set->serial, 0);
    return leave(NVML_SUCCESS);
}

nvmlReturn_t nvmlEventSetFree(nvmlEventSet_t handle)
{
    struct target at;
    nvmlReturn_t code = enter(__func__, NULL, DEVICE, &at);
    struct event_set *set = code ? NULL : set_of(handle);
    if (set)
        close_set(set);
    return leave(code || set ? code : NVML_ERROR_INVALID_ARGUMENT);
}

ASK_GPU(nvmlDeviceGetSupportedEventTypes, DEVICE, (nvmlDevice_t handle, unsigned long long *types),
        (*types = EVENT_XID, NVML_SUCCESS))

nvmlReturn_t nvmlDeviceRegisterEvents(nvmlDevice_t device, unsigned long long types, nvmlEventSet_t handle)
{
    struct target at;
    nvmlReturn_t code = enter_gpu(__func__, device, DEVICE, &at);
    struct event_set *set = code ? NULL : set_of(handle);
    if (code == NVML_SUCCESS && types & ~(unsigned long long)EVENT_XID)
        code = NVML_ERROR_NOT_SUPPORTED;
    if (code == NVML_SUCCESS && (!set || at.mig))
        code = NVML_ERROR_INVALID_ARGUMENT;
    if (code == NVML_SUCCESS && types)
        set->watched[at.gpu->index] = true;
    return leave(code);
}

static nvmlReturn_t next_event(struct event_set *set, nvmlEventData_t *data)
{
    for (int i = 0; i < library.now->events; i++) {
        const struct event *event = &library.now->event[i];
        const struct gpu *gpu = gpu_by_index(library.now, event->gpu);
        if (event->seq <= set->last_seq || !gpu || !set->watched[gpu->index])
            continue;
        set->last_seq = event->seq;
        *data = (nvmlEventData_t){
            .device = encode(DEVICE, gpu->index, 0, 0),
            .eventType = EVENT_XID,
            .eventData = (unsigned long long)event->xid,
            .gpuInstanceId = (unsigned int)(event->gi == NONE ? NO_INSTANCE : event->gi),
            .computeInstanceId = (unsigned int)(event->ci == NONE ? NO_INSTANCE : event->ci),
        };
        return NVML_SUCCESS;
    }
    return NVML_ERROR_TIMEOUT;
}

/* Blocks, without the lock, until the state file may have changed, the set is closed, or `ms` have passed. */
static void wait_for_change(const struct event_set *set, int64_t ms)
{
    char notes[4096];
    struct pollfd fds[] = {{.fd = set->wake, .events = POLLIN}, {.fd = set->changes, .events = POLLIN}};
    if (set->changes < 0)
        ms = 1;
    pthread_mutex_unlock(&library.lock);
    if (poll(fds, 2, ms > INT_MAX ? INT_MAX : (int)ms) > 0 && fds[1].revents)
        while (read(fds[1].fd, notes, sizeof(notes)) > 0)
            continue;
    pthread_mutex_lock(&library.lock);
}

nvmlReturn_t nvmlEventSetWait_v2(nvmlEventSet_t handle, nvmlEventData_t *data, unsigned int timeout_ms)
{
    struct target at;
    const int64_t deadline = now_ms() + timeout_ms;
    nvmlReturn_t code = enter(__func__, NULL, DEVICE, &at);
    struct event_set *set = code ? NULL : set_of(handle);
    if (!set)
        return leave(code ? code : NVML_ERROR_INVALID_ARGUMENT);
    set->waiters++;
    while ((code = next_event(set, data)) == NVML_ERROR_TIMEOUT && now_ms() < deadline) {
        wait_for_change(set, deadline - now_ms());
        code = set->closing ? NVML_ERROR_UNINITIALIZED : prepare(__func__, NULL, DEVICE, &at);
        if (code == NVML_SUCCESS && set->closing)
            code = NVML_ERROR_UNINITIALIZED;
        if (code != NVML_SUCCESS)
            break;
    }
    set->waiters--;
    if (set->closing)
        release_set(set);
    return leave(code);
}

nvmlReturn_t nvmlEventSetWait(nvmlEventSet_t handle, nvmlEventData_t *data, unsigned int timeout_ms)
{
    return nvmlEventSetWait_v2(handle, data, timeout_ms);
}
