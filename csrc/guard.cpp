// Devices, streams and events as c10 sees them.
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
  void synchronizeDevice(DeviceIndex device) const override {
    check(core->synchronize(device_index(device_at(device))));
  }
  c10::DeviceCapability getDeviceCapability(Device device) const override {
    c10::DeviceCapability capability;
    capability.capability_data.capability_bits &= core->supported_dtypes(device_index(device));
    return capability;
  }

  Stream getStream(Device device) const override {
    const int32_t index = device_index(device);
    return stream_at(index, core->current_stream(index));
  }
  Stream getDefaultStream(Device device) const override { return stream_at(device_index(device), 0); }
  Stream getNewStream(Device device, int priority) const override {
    const int32_t index = device_index(device);
    const int64_t id = core->new_stream(index, priority);
    if (id < 0) throw_status(TPU_RUNTIME_ERROR);
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
    int32_t done = 0;
    check(core->stream_query(stream.device_index(), stream.id(), &done));
    return done != 0;
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
    if (event) check(core->event_block(event, stream.device_index(), stream.id()));
  }
  bool queryEvent(void* event) const override {
    int32_t done = 1;
    if (event) check(core->event_query(event, &done));
    return done != 0;
  }
  void synchronizeEvent(void* event) const override {
    if (event) check(core->event_synchronize(event));
  }
  void destroyEvent(void* event, DeviceIndex) const noexcept override {
    if (event) core->event_destroy(event);
  }
  double elapsedTime(void* start, void* end, DeviceIndex) const override {
    TORCH_CHECK(start && end, "Both events must be recorded before calculating elapsed time.");
    double milliseconds = 0;
    check(core->event_elapsed(start, end, &milliseconds));
    return milliseconds;
  }
};

}  // namespace

void register_guard() { static const c10::impl::DeviceGuardImplRegistrar registrar(kTpu, new Guard); }

}  // namespace tpu
