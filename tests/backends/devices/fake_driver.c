/* Stand-ins for libcuda.so.1 and libnvidia-ml.so.1. FAKE_DEVICES is a list of "major.minor,MiB,unified,bus,name;...";
 * FAKE_INIT is what the library's init returns; FAKE_VERSION is the CUDA version (12040); FAKE_FAULT is "crash" or
 * "hang". One build plays every machine. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct device {
  int major, minor, mib, unified, bus;
  char name[96];
} device;

static device devices[16];
static int device_count = -1;

static int number(const char *name, int otherwise) {
  const char *text = getenv(name);
  return text ? atoi(text) : otherwise;
}

static int start(void) {
  const char *fault = getenv("FAKE_FAULT");
  if (fault && !strcmp(fault, "crash")) abort();
  if (fault && !strcmp(fault, "hang")) sleep(600);
  if (fault && !strcmp(fault, "flood"))
    for (int i = 0; i < 1 << 20; ++i) puts("a library that prints where the answer goes");
  device_count = 0;
  const char *text = getenv("FAKE_DEVICES");
  while (text && *text && device_count < 16) {
    device *d = &devices[device_count];
    if (sscanf(text, "%d.%d,%d,%d,%d,%95[^;]", &d->major, &d->minor, &d->mib, &d->unified, &d->bus, d->name) != 6)
      break;
    ++device_count;
    text = strchr(text, ';');
    if (text) ++text;
  }
  return number("FAKE_INIT", 0);
}

#ifdef FAKE_CUDA
int cuDriverGetVersion(int *version) { return *version = number("FAKE_VERSION", 12040), 0; }
int cuInit(unsigned flags) { return (void)flags, start(); }
int cuDeviceGetCount(int *count) {
  if (getenv("CUDA_VISIBLE_DEVICES")) return 999; /* the detector must see all devices */
  return *count = device_count, 0;
}
int cuDeviceGet(int *handle, int ordinal) { return *handle = ordinal, 0; }
int cuDeviceGetName(char *name, int size, int handle) {
  return snprintf(name, (size_t)size, "%s", devices[handle].name), 0;
}
int cuDeviceGetUuid_v2(unsigned char *uuid, int handle) { return memset(uuid, devices[handle].bus, 16), 0; }
int cuDeviceTotalMem_v2(size_t *bytes, int handle) { return *bytes = (size_t)devices[handle].mib << 20, 0; }
int cuDeviceGetAttribute(int *value, int attribute, int handle) {
  const device *d = &devices[handle];
  switch (attribute) {
    case 18:
      *value = d->unified;
      return 0;
    case 33:
      *value = d->bus;
      return 0;
    case 34:
    case 50:
      *value = 0;
      return 0;
    case 75:
      *value = d->major;
      return 0;
    case 76:
      *value = d->minor;
      return 0;
  }
  return 1;
}
#else
typedef struct pci {
  char legacy[16];
  unsigned domain, bus, device, id, subsystem;
  char bus_id[32];
} pci;
typedef struct memory {
  unsigned version;
  uint64_t total, reserved, free, used;
} memory;
int nvmlInit_v2(void) { return start(); }
int nvmlSystemGetDriverVersion(char *text, unsigned size) { return snprintf(text, size, "550.90.07"), 0; }
int nvmlSystemGetCudaDriverVersion_v2(int *version) { return *version = number("FAKE_VERSION", 12040), 0; }
int nvmlDeviceGetCount_v2(unsigned *count) { return *count = (unsigned)device_count, 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **handle) { return *handle = &devices[index], 0; }
int nvmlDeviceGetName(void *handle, char *text, unsigned size) {
  return snprintf(text, size, "%s", ((device *)handle)->name), 0;
}
int nvmlDeviceGetUUID(void *handle, char *text, unsigned size) {
  const int b = ((device *)handle)->bus;
  return snprintf(text, size, "GPU-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", b, b, b, b, b,
                  b, b, b, b, b, b, b, b, b, b, b),
         0;
}
int nvmlDeviceGetPciInfo_v3(void *handle, pci *info) {
  return snprintf(info->bus_id, sizeof info->bus_id, "00000000:%02X:00.0", ((device *)handle)->bus), 0;
}
int nvmlDeviceGetCudaComputeCapability(void *handle, int *major, int *minor) {
  return *major = ((device *)handle)->major, *minor = ((device *)handle)->minor, 0;
}
int nvmlDeviceGetMemoryInfo_v2(void *handle, memory *info) {
  if (info->version != (sizeof *info | 2u << 24)) return 25;
  const uint64_t total = (uint64_t)((device *)handle)->mib << 20;
  info->total = total, info->reserved = 400 << 20, info->used = 100 << 20, info->free = total - (500ull << 20);
  return 0;
}
int nvmlDeviceGetMemoryInfo(void *handle, void *info) { return (void)handle, (void)info, 3; }
int nvmlDeviceGetMigMode(void *handle, int *now, int *later) { return (void)handle, *now = 0, *later = 0, 0; }
int nvmlDeviceGetVirtualizationMode(void *handle, int *mode) { return (void)handle, *mode = 2, 0; }
#endif
