//! Copies: host to device, device to host, and on the device.

use std::sync::{Arc, LazyLock};

use ops::{DType, Dims};

use crate::call::{Call, ModeBits, Tensor, Value};
use crate::device::{self, Device};
use crate::dispatch;
use crate::error::{Error, Result};
use crate::layout::{self, Layout, memory_order};
use crate::memory;
use crate::operator::{self, Operator};
use crate::origin::{Origin, current_site};
use crate::overlap;
use crate::plan::MetaResult;
use crate::schema::Schema;
use crate::stats::{STATS, count};
use crate::storage::{Contents, Held, Storage};
use crate::stream;
use crate::wait;

/// The operator under which copies are planned.
static COPY: LazyLock<&Operator> = LazyLock::new(|| {
    let schema = "aten::copy_(Tensor(a!) self, Tensor src, bool non_blocking=False) -> Tensor(a!)";
    operator::intern(Schema::parse(schema).expect("a schema"), Some("aten::copy"), false)
});

fn origin() -> Origin {
    Origin { op: COPY.id, site: current_site() }
}

/// The whole storage, densely: the buffer is the tensor.
fn dense_over_storage(tensor: &Tensor) -> Option<Layout> {
    let covers =
        tensor.offset == 0 && tensor.numel() as usize * tensor.dtype.size() == tensor.storage.nbytes();
    let order = memory_order(tensor.sizes, tensor.strides).filter(|_| covers)?;
    Some(Layout::dense(tensor.dtype, order.iter().map(|&d| tensor.sizes[d]).collect()))
}

/// Uploads `source`, the elements of a host tensor with `dst`'s dtype and sizes, dense with strides `strides`.
pub fn from_host(dst: &Tensor, strides: &[i64], source: pjrt::HostSource) -> Result<()> {
    device::check_fork()?;
    if dst.numel() == 0 {
        return Ok(());
    }
    overlap::assert_none_within(dst)?;
    let device = dst.storage.device();
    let order = memory_order(dst.sizes, strides)
        .ok_or_else(|| Error::internal("the host side of a copy is not dense"))?;
    let layout = Layout::dense(dst.dtype, order.iter().map(|&d| dst.sizes[d]).collect());
    let runtime = device::runtime()?;
    count(&STATS.host_transfers);
    STATS.bytes_to_device.fetch_add(layout.bytes() as u64, std::sync::atomic::Ordering::Relaxed);
    let buffer = runtime
        .client
        .buffer_from_host(source, device::pjrt_element(dst.dtype), &layout.dims, device.pjrt())
        .map_err(|source| transfer_error(device, layout.bytes(), source))?;
    let held = Held { buffer: Arc::new(buffer), layout: layout::intern(layout.clone()), origin: origin() };
    if dense_over_storage(dst).is_some_and(|own| own == layout) {
        dst.storage.set(Contents::Buffer(held));
        return Ok(());
    }
    let staging = Storage::new(device, layout.bytes())?;
    staging.set(Contents::Buffer(held));
    let src = Tensor { storage: &staging, strides, offset: 0, conj: false, neg: false, ..*dst };
    on_device(dst, &src)
}

fn transfer_error(device: &Device, nbytes: usize, source: pjrt::Error) -> Error {
    if source.code() == Some(pjrt::Code::ResourceExhausted) {
        return device.memory().out_of_memory(device, &format!("upload {}", memory::readable(nbytes as u64)));
    }
    Error::Transfer(Arc::new(source))
}

/// `dst.copy_(src)` for tensors of equal sizes, of any dtypes and strides, also across devices. The front end has refused
/// a `src` that shares memory with `dst` in part: once it is expanded, this cannot be told.
pub fn on_device(dst: &Tensor, src: &Tensor) -> Result<()> {
    device::check_fork()?;
    // The same elements, even if they overlap: nothing to do, as on the CPU.
    if dst.numel() == 0 || dst.is_same(src) {
        return Ok(());
    }
    overlap::assert_none_within(dst)?;
    if !std::ptr::eq(dst.storage.device(), src.storage.device()) {
        return across_devices(dst, src);
    }
    if share(dst, src) {
        return Ok(());
    }
    let args = [
        Value::Tensor(*dst),
        Value::Tensor(*src),
        Value::Number { number: ops::Number::Bool(false), is_scalar: false },
    ];
    let device = dst.storage.device().index() as i32;
    let call = Call { op: *COPY, args: &args, modes: ModeBits::default(), device };
    let plan = match dispatch::plan(&call)? {
        Some(plan) => plan,
        None => {
            let meta = dst.meta();
            let metas = MetaResult {
                functional: vec![Some(meta.clone())],
                mutated: vec![(0, meta)],
                ..MetaResult::default()
            };
            dispatch::build(&call, &metas)?
        }
    };
    dispatch::execute(&call, &plan, &[])
}

/// Lets both storages hold the same buffer when the copy would be identical: a later write makes a new buffer, for
/// a buffer with two holders is never donated.
fn share(dst: &Tensor, src: &Tensor) -> bool {
    let plain = dst.conj == src.conj && dst.neg == src.neg && dst.strides == src.strides;
    if !plain || Arc::ptr_eq(dst.storage, src.storage) {
        return false;
    }
    let (Some(to), Some(from)) = (dense_over_storage(dst), dense_over_storage(src)) else { return false };
    if to != from {
        return false;
    }
    match src.storage.snapshot() {
        Contents::Buffer(held) if *layout::get(held.layout) == to => {
            dst.storage.set(Contents::Buffer(held));
            true
        }
        _ => false,
    }
}

fn across_devices(dst: &Tensor, src: &Tensor) -> Result<()> {
    let (dense, strides) = dense_copy(src)?;
    let Contents::Buffer(held) = dense.snapshot() else {
        return Err(Error::internal("a dense copy has no buffer"));
    };
    let target = dst.storage.device();
    let moved =
        held.buffer.copy_to_device(target.pjrt()).map_err(|e| transfer_error(target, dense.nbytes(), e))?;
    let staging = Storage::new(target, dense.nbytes())?;
    staging.set(Contents::Buffer(Held { buffer: Arc::new(moved), ..held }));
    let moved = Tensor {
        storage: &staging,
        strides: &strides,
        offset: 0,
        conj: false,
        neg: false,
        dtype: src.dtype,
        sizes: src.sizes,
    };
    on_device(dst, &moved)
}

/// A storage that holds just the elements of `src`, flags applied, and their strides: the tensor's own storage when it
/// is one already.
fn dense_copy(src: &Tensor) -> Result<(Arc<Storage>, Dims)> {
    let plain = !src.conj && !src.neg;
    if plain && let Some(layout) = dense_over_storage(src) {
        match src.storage.snapshot() {
            Contents::Buffer(held) if *layout::get(held.layout) == layout => {
                return Ok((src.storage.clone(), Dims::from_slice(src.strides)));
            }
            Contents::Failed(error) => return Err((*error).clone()),
            _ => {}
        }
    }
    // Dense tensors keep their order in memory; others become row-major.
    let strides = match memory_order(src.sizes, src.strides) {
        Some(_) => Dims::from_slice(src.strides),
        None => layout::row_major_strides(src.sizes),
    };
    let storage = Storage::new(src.storage.device(), src.numel() as usize * src.dtype.size())?;
    let dst = Tensor { storage: &storage, strides: &strides, offset: 0, conj: false, neg: false, ..*src };
    on_device(&dst, src)?;
    Ok((storage, strides))
}

/// Where host bytes of a device tensor come from.
pub struct Source {
    pub buffer: Arc<pjrt::Buffer>,
    /// Row-major bytes of the buffer have these strides over the tensor's sizes.
    pub strides: Dims,
    origin: Origin,
    device: &'static Device,
}

/// The dense buffer of a tensor that the host is about to read. Raises what earlier work left to raise.
pub fn for_host(src: &Tensor) -> Result<Source> {
    device::check_fork()?;
    let device = src.storage.device();
    device.checks.drain()?;
    let (storage, strides) = dense_copy(src)?;
    match storage.snapshot() {
        Contents::Buffer(held) => Ok(Source { buffer: held.buffer, strides, origin: held.origin, device }),
        Contents::Failed(error) => Err((*error).clone()),
        Contents::Empty(_) => Err(Error::internal("a dense copy has no buffer")),
    }
}

impl Source {
    /// Waits for a read of this source, or leaves it to the current stream.
    pub fn finish(&self, read: pjrt::Event, blocking: bool) -> Result<()> {
        count(&STATS.host_transfers);
        let bytes = self.buffer.host_bytes().unwrap_or(0) as u64;
        STATS.bytes_to_host.fetch_add(bytes, std::sync::atomic::Ordering::Relaxed);
        if !blocking {
            return stream::submit(self.device, read, self.origin);
        }
        wait::event(&read)?.map_err(|source| self.error(source))
    }

    pub fn error(&self, source: pjrt::Error) -> Error {
        let op = operator::get(self.origin.op);
        let error = dispatch::execution_error(self.device, op, None, source);
        Error::Asynchronous { origin: self.origin, source: Arc::new(error) }
    }
}

/// The one element of `src`, as bytes of its dtype.
pub fn read_scalar(src: &Tensor, out: &mut [u8]) -> Result<()> {
    if src.numel() != 1 {
        return Err(Error::Runtime(format!(
            "a tensor with {} elements cannot be converted to a scalar",
            src.numel()
        )));
    }
    let source = for_host(src)?;
    if !source.buffer.is_ready() {
        wait::event(&source.buffer.ready())?.map_err(|error| source.error(error))?;
    }
    count(&STATS.host_transfers);
    STATS.bytes_to_host.fetch_add(src.dtype.size() as u64, std::sync::atomic::Ordering::Relaxed);
    source.buffer.read_scalar(&mut out[..src.dtype.size()]).map_err(|error| source.error(error))
}

/// A storage of `nbytes` that starts with `old`'s bytes as far as they go.
pub fn resized(old: &Arc<Storage>, nbytes: usize) -> Result<Arc<Storage>> {
    let new = Storage::new(old.device(), nbytes)?;
    copy_prefix(&new, old, old.nbytes().min(nbytes))?;
    Ok(new)
}

/// Copies the first `nbytes` bytes.
pub fn copy_prefix(dst: &Arc<Storage>, src: &Arc<Storage>, nbytes: usize) -> Result<()> {
    let held = match src.snapshot() {
        Contents::Empty(_) => return Ok(()),
        Contents::Failed(error) => {
            dst.set(Contents::Failed(error));
            return Ok(());
        }
        Contents::Buffer(held) => held,
    };
    let dtype = layout::get(held.layout).dtype;
    let fits = |n: usize| n.is_multiple_of(dtype.size());
    let dtype = if fits(nbytes) && fits(dst.nbytes()) && fits(src.nbytes()) { dtype } else { DType::UInt8 };
    let sizes = [(nbytes / dtype.size()) as i64];
    let flat =
        |storage| Tensor { storage, dtype, sizes: &sizes, strides: &[1], offset: 0, conj: false, neg: false };
    on_device(&flat(dst), &flat(src))
}
