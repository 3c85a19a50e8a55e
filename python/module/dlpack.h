#pragma once
// The part of DLPack's version 1 that a consumer reads: tensors, and the table for exchange without Python
// calls.
#include <cstdint>

namespace upweave::python {

constexpr int kDLFloat = 2, kDLBfloat = 4;

struct DLDevice {
  int32_t device_type, device_id;
};
struct DLDataType {
  uint8_t code, bits;
  uint16_t lanes;
};
struct DLTensor {
  void* data;
  DLDevice device;
  int32_t ndim;
  DLDataType dtype;
  int64_t* shape;
  int64_t* strides;  // in elements; null for dense (before version 1.2)
  uint64_t byte_offset;
};
struct DLManagedTensor {
  DLTensor dl_tensor;
  void* manager_ctx;
  void (*deleter)(DLManagedTensor*);
};
struct DLPackVersion {
  uint32_t major, minor;
};
struct DLManagedTensorVersioned {
  DLPackVersion version;
  void* manager_ctx;
  void (*deleter)(DLManagedTensorVersioned*);
  uint64_t flags;  // bit 0: read-only
  DLTensor dl_tensor;
};
struct DLPackExchangeAPI {
  DLPackVersion version;
  void* prev_api;
  void* unused[3];  // the allocator, and exchange of owned tensors in both directions
  int (*dltensor_from_py_object_no_sync)(void* object, DLTensor* out);
  int (*current_work_stream)(int32_t device_type, int32_t device_id, void** stream);
};

}  // namespace upweave::python
