//! Storages: what PyTorch's `StorageImpl` points to.

use std::num::NonZeroUsize;
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};

use crate::device::{self, Device};
use crate::error::{Error, Result};
use crate::layout::{self, Layout, LayoutId};
use crate::origin::Origin;

/// One allocation: an address range nothing else uses, and at most one device buffer.
pub struct Storage {
    device: &'static Device,
    nbytes: usize,
    address: Option<NonZeroUsize>,
    contents: Mutex<Contents>,
}

/// What a storage holds. Cloning is cheap.
#[derive(Clone)]
pub enum Contents {
    /// Uninitialised memory; reads as zeros. The layout is that of the tensor it was made for, if known.
    Empty(Option<LayoutId>),
    Buffer(Held),
    /// The computation that should have written it failed.
    Failed(Arc<Error>),
}

#[derive(Clone)]
pub struct Held {
    pub buffer: Arc<pjrt::Buffer>,
    pub layout: LayoutId,
    pub origin: Origin,
}

impl Storage {
    /// Fails with `OutOfMemory` when the device's limit would be exceeded.
    pub fn new(device: &'static Device, nbytes: usize) -> Result<Arc<Self>> {
        device.memory().admit(device, nbytes)?;
        let address = if nbytes == 0 {
            None
        } else {
            let reserved = pjrt::address_space::reserve(nbytes);
            if reserved.is_none() {
                device.memory().release(nbytes);
                return Err(Error::OutOfMemory {
                    message: format!("the reserved address range has no room for {nbytes} bytes"),
                });
            }
            reserved
        };
        let contents = Mutex::new(Contents::Empty(None));
        let storage = Arc::new(Storage { device, nbytes, address, contents });
        if let Some(address) = address {
            device.memory().register(address.get(), &storage);
        }
        Ok(storage)
    }

    pub fn device(&self) -> &'static Device {
        self.device
    }

    pub fn nbytes(&self) -> usize {
        self.nbytes
    }

    /// 0 for an empty storage.
    pub fn address(&self) -> usize {
        self.address.map_or(0, NonZeroUsize::get)
    }

    pub fn lock(&self) -> MutexGuard<'_, Contents> {
        self.contents.lock()
    }

    pub fn snapshot(&self) -> Contents {
        self.contents.lock().clone()
    }

    pub fn set(&self, contents: Contents) {
        *self.contents.lock() = contents;
    }

    /// Tells an uninitialised storage the shape of the dense tensor that it was made for.
    pub fn declare(&self, layout: Layout) {
        if layout.bytes() == self.nbytes {
            let id = layout::intern(layout);
            let mut contents = self.contents.lock();
            if let Contents::Empty(declared) = &mut *contents {
                *declared = Some(id);
            }
        }
    }
}

impl Drop for Storage {
    fn drop(&mut self) {
        if device::in_bad_fork() {
            // A plugin's lock may be held by a thread that the child does not have.
            std::mem::forget(std::mem::replace(self.contents.get_mut(), Contents::Empty(None)));
        }
        if let Some(address) = self.address {
            self.device.memory().unregister(address.get());
            pjrt::address_space::release(address, self.nbytes);
        }
        self.device.memory().release(self.nbytes);
    }
}
