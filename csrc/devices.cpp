// Devices, streams and events as c10 and PyTorch's device-independent code see them.
#include <ATen/core/GraphImplInterface.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include "core.h"

namespace tpu {
namespace {

using c10::Device, c10::DeviceIndex, c10::Stream;

Stream stream_at(int32_t device, int64_t id) { return Stream(Stream::UNSAFE, device_at(device), id); }

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return kTpu; }
  Device exchangeDevice(Device device) const override { return device_at(core->exchange_device(device_index(device))); }
  Device getDevice() const override { return device_at(core->current_device()); }
  void setDevice(Device device) const override { exchangeDevice(device); }
  void uncheckedSetDevice(Device device) const noexcept override { core->exchange_device(device.index()); }
  DeviceIndex deviceCount() const noexcept override { return static_cast<DeviceIndex>(core->device_count()); }
  void synchronizeDevice(DeviceIndex device) const override { check(core->synchronize(device_index(device))); }
  c10::DeviceCapability getDeviceCapability(Device) const override {
    c10::DeviceCapability capability;
    capability.capability_data.capability_bits &= core->supported_dtypes;
    return capability;
  }

  Stream getStream(Device device) const override {
    const int32_t index = device_index(device);
    return stream_at(index, core->current_stream(index));
  }
  Stream getDefaultStream(Device device) const override { return stream_at(device_index(device), 0); }
  Stream getNewStream(Device device, int priority) const override {
    const int32_t index = device_index(device);
    int64_t id = 0;
    check(core->new_stream(index, priority, &id));
    return stream_at(index, id);
  }
  Stream getStreamFromGlobalPool(Device device, bool high_priority) const override {
    return getNewStream(device, high_priority ? -1 : 0);
  }
  Stream exchangeStream(Stream stream) const override {
    return stream_at(stream.device_index(), core->exchange_stream(stream.device_index(), stream.id()));
  }
  void* getStreamNativeHandle(const Stream stream) const override { return reinterpret_cast<void*>(stream.id()); }
  bool queryStream(const Stream& stream) const override {
    bool done = false;
    check(core->stream_query(stream.device_index(), stream.id(), &done));
    return done;
  }
  void synchronizeStream(const Stream& stream) const override {
    check(core->stream_synchronize(stream.device_index(), stream.id()));
  }
  void recordDataPtrOnStream(const c10::DataPtr& data, const Stream& stream) const override {
    core->record_stream(data.get_context(), stream.id());
  }

  // A null event has not been recorded yet: waiting for it returns at once.
  void record(void** event, const Stream& stream, DeviceIndex device, c10::EventFlag flag) const override {
    TORCH_CHECK(device == -1 || device == stream.device_index(), "Event device index ", static_cast<int>(device),
                " does not match recording stream's device index ", static_cast<int>(stream.device_index()), ".");
    check(core->event_record(event, stream.device_index(), stream.id(), flag == c10::EventFlag::BACKEND_DEFAULT));
  }
  void block(void* event, const Stream& stream) const override {
    check(core->event_block(event, stream.device_index(), stream.id()));
  }
  bool queryEvent(void* event) const override {
    bool done = true;
    check(core->event_query(event, &done));
    return done;
  }
  void synchronizeEvent(void* event) const override { check(core->event_synchronize(event)); }
  void destroyEvent(void* event, DeviceIndex) const noexcept override { core->event_destroy(event); }
  double elapsedTime(void* start, void* end, DeviceIndex) const override {
    TORCH_CHECK(start && end, "Both events must be recorded before calculating elapsed time.");
    double milliseconds = 0;
    check(core->event_elapsed(start, end, &milliseconds));
    return milliseconds;
  }
};

// What device-independent code asks about the accelerator. None of the questions starts the client.
struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return core->device_count() > 0; }
  bool hasPrimaryContext(DeviceIndex) const override { return core->has_primary_context(); }
  DeviceIndex deviceCount() const override { return static_cast<DeviceIndex>(core->device_count()); }
  DeviceIndex getCurrentDevice() const override { return static_cast<DeviceIndex>(core->current_device()); }
  void setCurrentDevice(DeviceIndex device) const override { exchangeDevice(device); }
  DeviceIndex exchangeDevice(DeviceIndex device) const override {
    return static_cast<DeviceIndex>(core->exchange_device(device_index(device)));
  }
  // Here a negative index means "leave it", as for CUDA.
  DeviceIndex maybeExchangeDevice(DeviceIndex device) const override { return exchangeDevice(device); }
  at::Device getDeviceFromPtr(void* data) const override {
    const int32_t device = core->device_of_address(data);
    TORCH_CHECK(device >= 0, "The specified pointer resides on host memory and is not registered with any tpu device.");
    return device_at(device);
  }
  bool isPinnedPtr(const void* data) const override { return data && core->is_pinned(data); }
  at::Allocator* getPinnedMemoryAllocator() const override { return pinned_allocator(); }
  const at::Generator& getDefaultGenerator(DeviceIndex device) const override { return default_generator(device); }
  at::Generator getNewGenerator(DeviceIndex device) const override { return new_generator(device); }
  // untyped_storage().resize_(), with which FSDP2 frees and restores parameters.
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t nbytes) const override {
    resize_storage(storage.unsafeGetStorageImpl(), nbytes);
  }
};

}  // namespace

void register_devices() {
  static const c10::impl::DeviceGuardImplRegistrar registrar(kTpu, new Guard);
  if (!core->register_hooks) return;
  at::RegisterPrivateUse1HooksInterface(new Hooks);
  // Without an entry, torch.accelerator.Graph would raise a plain RuntimeError.
  at::GraphImplRegistry()->Register(
      c10::DeviceTypeName(kTpu, false), [](const at::GraphImplArgs&) -> std::unique_ptr<at::GraphImplInterface> {
        TORCH_CHECK_NOT_IMPLEMENTED(false,
                                    "torch.accelerator.Graph is not implemented on tpu: PJRT captures no graphs");
      });
}

}  // namespace tpu
