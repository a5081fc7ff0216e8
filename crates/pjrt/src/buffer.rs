//! Device buffers and transfers between host and device.

use std::sync::Arc;

use smallvec::SmallVec;

use crate::client::{ClientHandle, Device};
use crate::element_type::ElementType;
use crate::error::{Error, Result};
use crate::event::Event;
use crate::sys::*;

/// Dimensions, major first.
pub type Dims = SmallVec<[i64; 6]>;

/// Host memory that an owner keeps alive and in place.
pub struct HostRegion {
    ptr: *const u8,
    len: usize,
    owner: Box<dyn Send>,
}

// SAFETY: `new` asks for memory that any thread may read; the owner is Send.
unsafe impl Send for HostRegion {}

impl HostRegion {
    /// # Safety
    /// `ptr` must be valid for reads of `len` bytes from any thread until `owner` is dropped.
    pub unsafe fn new(ptr: *const u8, len: usize, owner: Box<dyn Send>) -> HostRegion {
        HostRegion { ptr, len, owner }
    }
}

/// Where an upload reads from. The array is dense and row major.
pub enum HostSource<'a> {
    /// Read before the call returns.
    Copy(&'a [u8]),
    /// Read until the transfer is done; the device keeps its own copy. The bytes must not change meanwhile, or the
    /// buffer holds some mix. The owner is dropped when PJRT is done, perhaps on a thread of the plugin.
    Borrowed(HostRegion),
    /// As `Borrowed`, but a CPU plugin may use the memory itself (when it is aligned to 64 bytes) as the buffer, so
    /// the bytes must not change and the owner is not dropped until the buffer is gone. PJRT never writes to it.
    Aliased(HostRegion),
}

/// An array on a device. Freed on drop, once the work that uses it is done.
pub struct Buffer {
    raw: *mut PJRT_Buffer,
    client: Arc<ClientHandle>,
    device: *mut PJRT_Device,
    element_type: ElementType,
    dims: Dims,
}

// SAFETY: PJRT buffers may be used from any thread.
unsafe impl Send for Buffer {}
// SAFETY: as above.
unsafe impl Sync for Buffer {}

impl Buffer {
    /// # Safety
    /// `raw` must be an owned buffer of `client` on `device`, of this type and these dimensions.
    #[inline]
    pub(crate) unsafe fn from_raw(
        raw: *mut PJRT_Buffer,
        client: Arc<ClientHandle>,
        device: *mut PJRT_Device,
        element_type: ElementType,
        dims: Dims,
    ) -> Buffer {
        Buffer { raw, client, device, element_type, dims }
    }

    pub(crate) fn from_host(
        source: HostSource<'_>,
        element_type: ElementType,
        dims: &[i64],
        device: &Device,
    ) -> Result<Buffer> {
        let expected = element_type.dense_bytes(dims)?;
        let (data, len, semantics, owner) = match source {
            HostSource::Copy(bytes) => (bytes.as_ptr(), bytes.len(), IMMUTABLE_ONLY_DURING_CALL, None),
            HostSource::Borrowed(HostRegion { ptr, len, owner }) => {
                (ptr, len, IMMUTABLE_UNTIL_TRANSFER_COMPLETES, Some(owner))
            }
            HostSource::Aliased(HostRegion { ptr, len, owner }) => {
                (ptr, len, IMMUTABLE_ZERO_COPY, Some(owner))
            }
        };
        if len != expected {
            let dims = dims.to_vec();
            return Err(Error::HostSize {
                what: "the host source",
                element_type,
                dims,
                expected,
                actual: len,
            });
        }
        let client = device.client();
        let mut args = PJRT_Client_BufferFromHostBuffer_Args {
            client: client.raw(),
            data: data.cast(),
            type_: element_type as u32,
            dims: dims.as_ptr(),
            num_dims: dims.len(),
            host_buffer_semantics: semantics,
            device: device.raw(),
            ..PJRT_Client_BufferFromHostBuffer_Args::new()
        };
        // SAFETY: the data has the length that type and dimensions imply. It lives for the call, or until its
        // owner is dropped, which happens when PJRT says that it is done.
        unsafe { client.plugin().call(&mut args)? };
        let done = Event::from_raw(args.done_with_host_buffer, client);
        if let Some(owner) = owner {
            done.on_ready(move |_| drop(owner));
        }
        let dims = Dims::from_slice(dims);
        Ok(Buffer { raw: args.buffer, client: client.clone(), device: device.raw(), element_type, dims })
    }

    #[inline]
    pub fn element_type(&self) -> ElementType {
        self.element_type
    }

    #[inline]
    pub fn dims(&self) -> &[i64] {
        &self.dims
    }

    /// Bytes of the array in dense host memory.
    pub fn host_bytes(&self) -> Result<usize> {
        self.element_type.dense_bytes(&self.dims)
    }

    /// Bytes on the device, padding included.
    pub fn size_bytes(&self) -> Result<usize> {
        let mut args = PJRT_Buffer_OnDeviceSizeInBytes_Args {
            buffer: self.raw,
            ..PJRT_Buffer_OnDeviceSizeInBytes_Args::new()
        };
        // SAFETY: the buffer is live.
        unsafe { self.client.plugin().call(&mut args)? };
        Ok(args.on_device_size_in_bytes)
    }

    #[inline]
    pub fn is_on(&self, device: &Device) -> bool {
        self.device == device.raw()
    }

    /// Done when the contents are computed. It fails when computing them did, and at once when the buffer has been
    /// deleted or donated.
    pub fn ready(&self) -> Event {
        let mut args = PJRT_Buffer_ReadyEvent_Args { buffer: self.raw, ..PJRT_Buffer_ReadyEvent_Args::new() };
        // SAFETY: the buffer is live.
        match unsafe { self.client.plugin().call(&mut args) } {
            Ok(()) => Event::from_raw(args.event, &self.client),
            Err(error) => Event::done(Err(error)),
        }
    }

    /// Whether the contents are computed, successfully or not.
    pub fn is_ready(&self) -> bool {
        self.ready().is_ready()
    }

    /// Copies the array to the host, dense and row major, and waits for it. `dst` must have its exact size.
    pub fn read_into(&self, dst: &mut [u8]) -> Result<()> {
        self.check_host_size("the destination", dst.len())?;
        // SAFETY: `dst` is borrowed until the copy is done.
        unsafe { self.start_read(dst.as_mut_ptr(), dst.len())? }.await_ready()
    }

    /// Starts a copy to the host. The owner is dropped when the copy is done, perhaps on a thread of the plugin; the
    /// event may fire just before that.
    ///
    /// # Safety
    /// `dst` must be valid for writes of `len` bytes from any thread, and otherwise unused, until `owner` is dropped.
    pub unsafe fn read_async(&self, dst: *mut u8, len: usize, owner: Box<dyn Send>) -> Result<Event> {
        self.check_host_size("the destination", len)?;
        // SAFETY: passed on to the caller.
        let event = unsafe { self.start_read(dst, len)? };
        event.on_ready(move |_| drop(owner));
        Ok(event)
    }

    /// Like [`Buffer::read_into`], and without a thread switch (30 us) where device memory is host memory. Meant for
    /// a few bytes: the copy is made by this thread.
    pub fn read_scalar(&self, dst: &mut [u8]) -> Result<()> {
        if !self.client.is_cpu() || self.element_type.size_bits() < 8 {
            return self.read_into(dst);
        }
        self.check_host_size("the destination", dst.len())?;
        let plugin = self.client.plugin();
        let buffer = self.raw;
        let mut hold = PJRT_Buffer_IncreaseExternalReferenceCount_Args {
            buffer,
            ..PJRT_Buffer_IncreaseExternalReferenceCount_Args::new()
        };
        // SAFETY: the buffer is live.
        if let Err(error) = unsafe { plugin.call(&mut hold) } {
            return match error {
                Error::Unsupported { .. } => self.read_into(dst),
                error => Err(error),
            };
        }
        let result = self.ready().await_ready().and_then(|()| self.unsafe_pointer()).map(|address| {
            if !dst.is_empty() {
                // SAFETY: on CPU the address is that of the dense array, at least `dst.len()` bytes long. The
                // external reference keeps it from being freed or donated.
                unsafe {
                    std::ptr::copy_nonoverlapping(address as *const u8, dst.as_mut_ptr(), dst.len());
                }
            }
        });
        let mut release = PJRT_Buffer_DecreaseExternalReferenceCount_Args {
            buffer,
            ..PJRT_Buffer_DecreaseExternalReferenceCount_Args::new()
        };
        // SAFETY: pairs with the increase above.
        unsafe { plugin.call(&mut release)? };
        result
    }

    /// Copies to another device of the same client, asynchronously. The plugin refuses the buffer's own device.
    pub fn copy_to_device(&self, device: &Device) -> Result<Buffer> {
        if !Arc::ptr_eq(&self.client, device.client()) {
            return Err(Error::ForeignClient);
        }
        let mut args = PJRT_Buffer_CopyToDevice_Args {
            buffer: self.raw,
            dst_device: device.raw(),
            ..PJRT_Buffer_CopyToDevice_Args::new()
        };
        // SAFETY: buffer and device are live and of one client.
        unsafe { self.client.plugin().call(&mut args)? };
        Ok(Buffer {
            raw: args.dst_buffer,
            client: self.client.clone(),
            device: device.raw(),
            element_type: self.element_type,
            dims: self.dims.clone(),
        })
    }

    /// Gives the memory back now (once pending work is done). Later uses of the buffer are errors.
    pub fn delete(&self) -> Result<()> {
        let mut args = PJRT_Buffer_Delete_Args { buffer: self.raw, ..PJRT_Buffer_Delete_Args::new() };
        // SAFETY: the buffer is live.
        unsafe { self.client.plugin().call(&mut args) }
    }

    /// Whether the memory was given back or donated.
    pub fn is_deleted(&self) -> bool {
        let mut args = PJRT_Buffer_IsDeleted_Args { buffer: self.raw, ..PJRT_Buffer_IsDeleted_Args::new() };
        // SAFETY: the buffer is live.
        unsafe { self.client.plugin().call(&mut args) }.is_err() || args.is_deleted
    }

    /// The address on the device, for identity checks and, on CPU, for reading a ready buffer. Donation, deletion and
    /// drop invalidate it.
    pub fn unsafe_pointer(&self) -> Result<usize> {
        let mut args =
            PJRT_Buffer_UnsafePointer_Args { buffer: self.raw, ..PJRT_Buffer_UnsafePointer_Args::new() };
        // SAFETY: the buffer is live.
        unsafe { self.client.plugin().call(&mut args)? };
        Ok(args.buffer_pointer)
    }

    #[inline]
    pub(crate) fn raw(&self) -> *mut PJRT_Buffer {
        self.raw
    }

    #[inline]
    pub(crate) fn client(&self) -> &Arc<ClientHandle> {
        &self.client
    }

    fn check_host_size(&self, what: &'static str, actual: usize) -> Result<()> {
        let expected = self.host_bytes()?;
        if actual == expected {
            return Ok(());
        }
        let (element_type, dims) = (self.element_type, self.dims.to_vec());
        Err(Error::HostSize { what, element_type, dims, expected, actual })
    }

    /// # Safety
    /// `dst` must be valid for writes of `len` bytes until the event is done.
    unsafe fn start_read(&self, dst: *mut u8, len: usize) -> Result<Event> {
        let minor_to_major: SmallVec<[i64; 6]> = (0..self.dims.len() as i64).rev().collect();
        let mut layout = PJRT_Buffer_MemoryLayout {
            value: PJRT_Buffer_MemoryLayout_Union {
                tiled: PJRT_Buffer_MemoryLayout_Tiled {
                    minor_to_major: minor_to_major.as_ptr(),
                    minor_to_major_size: minor_to_major.len(),
                    ..PJRT_Buffer_MemoryLayout_Tiled::new()
                },
            },
            type_: MEMORY_LAYOUT_TILED,
            ..PJRT_Buffer_MemoryLayout::new()
        };
        let mut args = PJRT_Buffer_ToHostBuffer_Args {
            src: self.raw,
            dst: dst.cast(),
            dst_size: len,
            ..PJRT_Buffer_ToHostBuffer_Args::new()
        };
        // Without a layout the array comes in the device's order of dimensions, which is row major on CPU only.
        if !self.client.is_cpu() && self.dims.len() > 1 {
            args.host_layout = &mut layout;
        }
        // SAFETY: the buffer is live, the layout outlives the call, and the caller vouches for `dst`.
        unsafe { self.client.plugin().call(&mut args)? };
        Ok(Event::from_raw(args.event, &self.client))
    }
}

impl AsRef<Buffer> for Buffer {
    fn as_ref(&self) -> &Buffer {
        self
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let mut args = PJRT_Buffer_Destroy_Args { buffer: self.raw, ..PJRT_Buffer_Destroy_Args::new() };
        // SAFETY: we own the buffer; work in flight keeps the memory it needs.
        let _ = unsafe { self.client.plugin().call(&mut args) };
    }
}

impl std::fmt::Debug for Buffer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Buffer({:?}{:?})", self.element_type, self.dims.as_slice())
    }
}
