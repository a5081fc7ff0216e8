// What device-independent PyTorch code asks about the accelerator. None of the questions starts the client.
#include <ATen/core/GraphImplInterface.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>

#include "core.h"

namespace tpu {

void register_hooks() {
  using c10::DeviceIndex;
  struct Hooks final : at::PrivateUse1HooksInterface {
    bool isBuilt() const override { return true; }
    bool isAvailable() const override { return core->device_count() > 0; }
    bool hasPrimaryContext(DeviceIndex device) const override { return core->has_primary_context(device) != 0; }
    DeviceIndex deviceCount() const override { return static_cast<DeviceIndex>(core->device_count()); }
    DeviceIndex getCurrentDevice() const override { return static_cast<DeviceIndex>(core->current_device()); }
    void setCurrentDevice(DeviceIndex device) const override { exchangeDevice(device); }
    DeviceIndex exchangeDevice(DeviceIndex device) const override {
      return static_cast<DeviceIndex>(core->exchange_device(device_index(device_at(device))));
    }
    // Here a negative index means "leave it", as for CUDA.
    DeviceIndex maybeExchangeDevice(DeviceIndex device) const override { return exchangeDevice(device); }
    at::Device getDeviceFromPtr(void* data) const override {
      const int32_t device = core->device_of_address(data);
      TORCH_CHECK(device >= 0,
                  "The specified pointer resides on host memory and is not registered with any tpu device.");
      return device_at(device);
    }
    bool isPinnedPtr(const void* data) const override { return data && core->is_pinned(data) != 0; }
    at::Allocator* getPinnedMemoryAllocator() const override { return pinned_allocator(); }
    const at::Generator& getDefaultGenerator(DeviceIndex device) const override { return default_generator(device); }
    at::Generator getNewGenerator(DeviceIndex device) const override { return new_generator(device); }
    // untyped_storage().resize_(), with which FSDP2 frees and restores parameters.
    void resizePrivateUse1Bytes(const c10::Storage& storage, size_t nbytes) const override {
      resize_storage(storage.unsafeGetStorageImpl(), nbytes);
    }
  };
  at::RegisterPrivateUse1HooksInterface(new Hooks);
  // Without an entry, torch.accelerator.Graph would raise a plain RuntimeError.
  at::GraphImplRegistry()->Register(
      c10::DeviceTypeName(kTpu, false), [](const at::GraphImplArgs&) -> std::unique_ptr<at::GraphImplInterface> {
        TORCH_CHECK_NOT_IMPLEMENTED(false,
                                    "torch.accelerator.Graph is not implemented on tpu: PJRT captures no graphs");
      });
}

}  // namespace tpu
