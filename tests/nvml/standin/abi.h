/* NVML's types as its callers lay them out, as far as the stand-in answers them. */
#ifndef STANDIN_ABI_H
#define STANDIN_ABI_H

typedef enum {
    NVML_SUCCESS = 0,
    NVML_ERROR_UNINITIALIZED = 1,
    NVML_ERROR_INVALID_ARGUMENT = 2,
    NVML_ERROR_NOT_SUPPORTED = 3,
    NVML_ERROR_NO_PERMISSION = 4,
    NVML_ERROR_NOT_FOUND = 6,
    NVML_ERROR_INSUFFICIENT_SIZE = 7,
    NVML_ERROR_DRIVER_NOT_LOADED = 9,
    NVML_ERROR_TIMEOUT = 10,
    NVML_ERROR_GPU_IS_LOST = 15,
    NVML_ERROR_OPERATING_SYSTEM = 17,
    NVML_ERROR_LIB_RM_VERSION_MISMATCH = 18,
    NVML_ERROR_INSUFFICIENT_RESOURCES = 23,
    NVML_ERROR_ARGUMENT_VERSION_MISMATCH = 25,
    NVML_ERROR_UNKNOWN = 999
} nvmlReturn_t;

/* Handles are numbers in disguise: never followed, so that a stale one is refused instead of crashing. */
typedef struct nvmlDevice_st *nvmlDevice_t;
typedef struct nvmlGpuInstance_st *nvmlGpuInstance_t;
typedef struct nvmlEventSet_st *nvmlEventSet_t;

typedef struct {
    char busIdLegacy[16];
    unsigned int domain, bus, device, pciDeviceId, pciSubSystemId;
    char busId[32];
} nvmlPciInfo_t;

typedef struct {
    unsigned long long total, free, used;
} nvmlMemory_t;

typedef struct {
    unsigned int version;
    unsigned long long total, reserved, free, used;
} nvmlMemory_v2_t;

typedef struct {
    unsigned int multiprocessorCount, sharedCopyEngineCount, sharedDecoderCount, sharedEncoderCount, sharedJpegCount,
        sharedOfaCount, gpuInstanceSliceCount, computeInstanceSliceCount;
    unsigned long long memorySizeMB;
} nvmlDeviceAttributes_t;

typedef struct {
    unsigned int start, size;
} nvmlPlacement_t;

typedef struct {
    nvmlDevice_t device;
    unsigned int id, profileId;
    nvmlPlacement_t placement;
} nvmlGpuInstanceInfo_t;

typedef struct {
    unsigned char clusterUuid[16];
    unsigned int status, cliqueId, state;
} nvmlGpuFabricInfo_t;

typedef struct {
    unsigned int version;
    nvmlGpuFabricInfo_t info;
    unsigned int healthMask;
    unsigned char healthSummary; /* from version 3 on */
} nvmlGpuFabricInfoV_t;

typedef struct {
    unsigned int fieldId, scopeId;
    long long timestamp, latencyUsec;
    unsigned int valueType, nvmlReturn;
    union {
        unsigned int uiVal;
        unsigned long long ullVal;
    } value;
} nvmlFieldValue_t;

typedef struct {
    unsigned int gpu, memory;
} nvmlUtilization_t;

typedef struct {
    unsigned int version, isSupportedDevice;
} nvmlGpmSupport_t;

typedef struct {
    unsigned int metricId, nvmlReturn;
    double value;
    const char *shortName, *longName, *unit;
} nvmlGpmMetric_t;

typedef struct {
    unsigned int version, numMetrics;
    void *sample1, *sample2;
    nvmlGpmMetric_t metrics[]; /* as many as this version of NVML knows */
} nvmlGpmMetricsGet_t;

typedef struct {
    unsigned int version, sensorType;
    int temperature;
} nvmlTemperature_t;

typedef struct {
    unsigned int version, value;
} nvmlDeviceAddressingMode_t;

typedef struct {
    nvmlDevice_t device;
    unsigned long long eventType, eventData;
    unsigned int gpuInstanceId, computeInstanceId;
} nvmlEventData_t;

_Static_assert(sizeof(nvmlPciInfo_t) == 68 && sizeof(nvmlMemory_v2_t) == 40, "ABI");
_Static_assert(sizeof(nvmlDeviceAttributes_t) == 40 && sizeof(nvmlGpuInstanceInfo_t) == 24, "ABI");
_Static_assert(sizeof(nvmlMemory_t) == 24 && sizeof(nvmlFieldValue_t) == 40, "ABI");
_Static_assert(sizeof(nvmlGpuFabricInfo_t) == 28 && sizeof(nvmlGpuFabricInfoV_t) == 40, "ABI");
_Static_assert(sizeof(nvmlDeviceAddressingMode_t) == 8, "ABI");
_Static_assert(sizeof(nvmlTemperature_t) == 12 && sizeof(nvmlEventData_t) == 32, "ABI");

_Static_assert(sizeof(nvmlGpmMetric_t) == 40 && sizeof(nvmlGpmMetricsGet_t) == 24, "ABI");

enum {
    GPM_V1 = 1,
    MEMORY_V2 = 0x02000028,
    FABRIC_V2 = 0x02000024,
    FABRIC_V3 = 0x03000028,
    TEMPERATURE_V1 = 0x0100000C,
    ADDRESSING_MODE_V1 = 0x01000008,
    EVENT_XID = 8,
    FIELD_RECOVERY_ACTION = 230,
    VALUE_UNSIGNED_INT = 1,
    NO_INSTANCE = -1,
    ROOM_TEMPERATURE = 41,
    VOLTA = 5,
    HOPPER = 9
};

#endif
