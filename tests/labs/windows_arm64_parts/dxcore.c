/* A dxcore.dll that lists one adapter: Qualcomm's NPU. With a device of that name in the registry, ONNX Runtime reports
 * a QNN device of type NPU, behind which there is no driver. Only what ONNX Runtime and QNN call is there. */
#include <string.h>
#include <windows.h>

#define VENDOR_QCOM 0x4d4f4351u
#define NOT_IMPLEMENTED 0x80004001
#define INVALID_ARGUMENT 0x80070057
#define PROPERTIES 15

static const GUID graphics = {0x0c9ece4d, 0x2f6e, 0x4f01, {0x8c, 0x96, 0xe8, 0x9e, 0x33, 0x1b, 0x47, 0xb1}};
static const GUID gpu = {0xb69eb219, 0x3ded, 0x4464, {0x97, 0x9f, 0xa0, 0x0b, 0xd4, 0x68, 0x70, 0x06}};
static const char name[] = "Qualcomm NPU";

/* COM objects: each is a pointer to its table of functions. */
static void *adapter[1], *list[1], *factory[1];

static HRESULT same(void *self, const GUID *iid, void **out) { *out = self; return 0; }
static ULONG counted(void *self) { return 2; }
static BOOLEAN yes(void *self) { return 1; }
static BOOLEAN no(void *self) { return 0; }
static HRESULT missing(void) { return NOT_IMPLEMENTED; }
static HRESULT give_factory(void *self, const GUID *iid, void **out) { *out = factory; return 0; }

static BOOLEAN has_attribute(void *self, const GUID *which) {
  return memcmp(which, &graphics, sizeof graphics) != 0 && memcmp(which, &gpu, sizeof gpu) != 0;
}
static BOOLEAN has_property(void *self, unsigned property) { return property < PROPERTIES; }
static HRESULT property_size(void *self, unsigned property, size_t *size) {
  static const int sizes[PROPERTIES] = {8, 8, sizeof name, 16, 4, 4, 4, 8, 8, 8, 1, 1, 1, 1, 20};
  if (property >= PROPERTIES) return INVALID_ARGUMENT;
  *size = sizes[property];
  return 0;
}
static HRESULT get_property(void *self, unsigned property, size_t size, void *out) {
  unsigned *words = out;
  memset(out, 0, size);
  switch (property) {
    case 0: words[0] = 0x1234; break;                                 /* LUID */
    case 2: strncpy(out, name, size); break;                          /* description */
    case 3: case 14: words[0] = VENDOR_QCOM; words[1] = 0x0d0a; break; /* vendor and device */
    case 11: case 12: *(char *)out = 1; break;                        /* hardware, integrated */
  }
  return 0;
}
static HRESULT get_adapter(void *self, unsigned index, const GUID *iid, void **out) { *out = adapter; return 0; }
static unsigned one(void *self) { return 1; }
static HRESULT in_order(void *self) { return 0; }
static HRESULT make_list(void *self, unsigned count, const GUID *kinds, const GUID *iid, void **out) {
  *out = list;
  return 0;
}
static HRESULT by_luid(void *self, void *luid, const GUID *iid, void **out) { *out = adapter; return 0; }
static HRESULT by_workload(void *self, unsigned workload, unsigned runtime, unsigned hardware, const GUID *iid, void **out) {
  *out = list;
  return 0;
}

static void *adapter_table[] = {same, counted, counted, yes, has_attribute, has_property, get_property, property_size,
                                no, missing, no, missing, give_factory};
static void *list_table[] = {same, counted, counted, get_adapter, one, no, give_factory, in_order, no};
static void *factory_table[] = {same, counted, counted, make_list, by_luid, no, missing, missing, by_workload};

__declspec(dllexport) HRESULT DXCoreCreateAdapterFactory(const GUID *iid, void **out) {
  adapter[0] = adapter_table;
  list[0] = list_table;
  factory[0] = factory_table;
  *out = factory;
  return 0;
}
