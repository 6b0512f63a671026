/* An NVML of our own: its GPUs draw (index + 1) * 100 W and misbehave on request.
 *
 * FAKE_NVML_GPUS         number of GPUs (default 2); GPU i is GPU-i, with MIG as below
 * FAKE_NVML_MIG          GPU that is divided into two instances, MIG-<gpu>-0 and MIG-<gpu>-1
 * FAKE_NVML_UNSUPPORTED  comma-separated names of calls that no device supports
 * FAKE_NVML_LOST         "GPU:seconds": that GPU is lost so long after the start
 * FAKE_NVML_RESET        "GPU:seconds": its energy counter starts again from 0 then
 * FAKE_NVML_SLOW         "GPU:seconds": so long takes each reading of its power
 * FAKE_NVML_LOG          file for the name of each call of a device's field
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { OK = 0, INVALID = 2, UNSUPPORTED = 3, NOT_FOUND = 6, LOST = 15 };
typedef struct { int gpu, instance; } Device;
typedef struct { unsigned gpu, memory; } Rates;
typedef struct { unsigned long long total, unused, used; } Memory;

static Device devices[64];
static double started_s;

static double now_s(void) {
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return at.tv_sec + at.tv_nsec / 1e9;
}

static int n_gpus(void) {
    const char *value = getenv("FAKE_NVML_GPUS");
    return value ? atoi(value) : 2;
}

/* The seconds that a variable has for this GPU; -1 if none. */
static double seconds_of(const char *variable, const Device *device) {
    const char *value = getenv(variable);
    if (!value || atoi(value) != device->gpu) return -1;
    return atof(strchr(value, ':') + 1);
}

static Device *device_of(int gpu, int instance) {
    Device *device = &devices[gpu * 4 + instance + 1];
    device->gpu = gpu;
    device->instance = instance;
    return device;
}

/* What every field does first: log, then refuse. */
static int enter(const Device *device, const char *name) {
    const char *log = getenv("FAKE_NVML_LOG"), *refused = getenv("FAKE_NVML_UNSUPPORTED");
    if (log) {
        FILE *file = fopen(log, "a");
        fprintf(file, "%s %d %d\n", name, device->gpu, device->instance);
        fclose(file);
    }
    double lost_s = seconds_of("FAKE_NVML_LOST", device);
    if (lost_s >= 0 && now_s() - started_s >= lost_s) return LOST;
    /* Of an instance NVML knows the memory alone. */
    if (device->instance >= 0 && strcmp(name, "MemoryInfo")) return UNSUPPORTED;
    return refused && strstr(refused, name) ? UNSUPPORTED : OK;
}

int nvmlInitWithFlags(unsigned flags) { (void)flags; started_s = now_s(); return OK; }
int nvmlShutdown(void) { return OK; }
const char *nvmlErrorString(int code) { return code == LOST ? "GPU is lost" : "error"; }

int nvmlSystemGetDriverVersion(char *text, unsigned size) {
    snprintf(text, size, "550.54.15");
    return OK;
}
int nvmlSystemGetCudaDriverVersion(int *version) { *version = 12040; return OK; }
int nvmlSystemGetCudaDriverVersion_v2(int *version) { *version = 12040; return OK; }

int nvmlDeviceGetCount_v2(unsigned *count) { *count = n_gpus(); return OK; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, Device **device) {
    if ((int)index >= n_gpus()) return INVALID;
    *device = device_of(index, -1);
    return OK;
}
int nvmlDeviceGetHandleByUUID(const char *uuid, Device **device) {
    int gpu, instance = -1;
    const char *divided = getenv("FAKE_NVML_MIG");
    if (sscanf(uuid, "GPU-%d", &gpu) != 1 &&
        (sscanf(uuid, "MIG-%d-%d", &gpu, &instance) != 2 || !divided || atoi(divided) != gpu))
        return NOT_FOUND;
    if (gpu >= n_gpus()) return NOT_FOUND;
    *device = device_of(gpu, instance);
    return OK;
}
int nvmlDeviceGetIndex(Device *device, unsigned *index) { *index = device->gpu; return OK; }
int nvmlDeviceGetUUID(Device *device, char *text, unsigned size) {
    snprintf(text, size, "GPU-%d", device->gpu);
    return OK;
}
int nvmlDeviceGetName(Device *device, char *text, unsigned size) {
    snprintf(text, size, "Invented %d", device->gpu);
    return OK;
}
int nvmlDeviceGetMigMode(Device *device, unsigned *current, unsigned *pending) {
    const char *divided = getenv("FAKE_NVML_MIG");
    *current = *pending = divided && atoi(divided) == device->gpu;
    return OK;
}
int nvmlDeviceGetDeviceHandleFromMigDeviceHandle(Device *instance, Device **device) {
    *device = device_of(instance->gpu, -1);
    return OK;
}
int nvmlDeviceGetGpuInstanceId(Device *device, unsigned *id) {
    *id = device->instance + 1;
    return OK;
}

int nvmlDeviceGetPowerUsage(Device *device, unsigned *milliwatts) {
    double slow_s = seconds_of("FAKE_NVML_SLOW", device);
    int code = enter(device, "PowerUsage");
    if (slow_s > 0) {
        struct timespec time = {(long)slow_s, (long)((slow_s - (long)slow_s) * 1e9)};
        nanosleep(&time, NULL);
    }
    *milliwatts = (device->gpu + 1) * 100000;
    return code;
}
int nvmlDeviceGetTotalEnergyConsumption(Device *device, unsigned long long *millijoules) {
    double since_s = now_s() - started_s, reset_s = seconds_of("FAKE_NVML_RESET", device);
    int is_reset = reset_s >= 0 && since_s >= reset_s;
    double joules = (device->gpu + 1) * 100 * (is_reset ? since_s - reset_s : since_s);
    *millijoules = (unsigned long long)((joules + (is_reset ? 0 : 7000)) * 1000);
    return enter(device, "TotalEnergyConsumption");
}
int nvmlDeviceGetUtilizationRates(Device *device, Rates *rates) {
    rates->gpu = 75;
    rates->memory = 5;
    return enter(device, "UtilizationRates");
}
int nvmlDeviceGetMemoryInfo(Device *device, Memory *memory) {
    memory->total = 40ULL << 30;
    memory->used = device->instance >= 0 ? 1ULL << 30 : 3ULL << 29;
    memory->unused = memory->total - memory->used;
    return enter(device, "MemoryInfo");
}
int nvmlDeviceGetClockInfo(Device *device, int kind, unsigned *megahertz) {
    *megahertz = kind == 1 ? 1410 : 0; /* 1 is the SM's */
    return enter(device, "ClockInfo");
}
int nvmlDeviceGetTemperature(Device *device, int sensor, unsigned *degrees) {
    (void)sensor;
    *degrees = 61;
    return enter(device, "Temperature");
}
/* The older name of nvmlDeviceGetCurrentClocksEventReasons, which this driver lacks. */
int nvmlDeviceGetCurrentClocksThrottleReasons(Device *device, unsigned long long *reasons) {
    *reasons = device->gpu ? 0 : 0x24;
    return enter(device, "ClocksThrottleReasons");
}
