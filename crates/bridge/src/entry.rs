//! The C entry points of the core. No panic and no Rust type crosses them.

use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};

use ops::TensorMeta;
use runtime::call::Call;
use runtime::plan::{MetaResult, Plan};
use runtime::storage::Storage;
use runtime::{Error, Kind, Result, copies, device, dispatch, generator, hooks, lists, meta, operator, out};
use smallvec::SmallVec;

use crate::abi::{self, Status};
use crate::convert::{self, Keepalive};
use crate::{pinned, queue};

thread_local! {
    static LAST_ERROR: RefCell<CString> = RefCell::default();
    static CURRENT: RefCell<Current> = RefCell::default();
}

/// The plan between `plan` and `execute`, and what [`abi::PlanInfo`] points to.
#[derive(Default)]
struct Current {
    plan: Option<Arc<Plan>>,
    outs: Vec<abi::Meta>,
    /// What `outs` points into when there is no plan.
    resized: Vec<TensorMeta>,
}

unsafe extern "C" fn last_error() -> *const c_char {
    LAST_ERROR.with_borrow(|error| error.as_ptr())
}

/// Records the error for `last_error` and gives its status.
pub fn fail(error: &Error) -> Status {
    let message = error.to_string().replace('\0', "\\0");
    LAST_ERROR.set(CString::new(message).unwrap_or_default());
    match error.kind() {
        Kind::Runtime => Status::RuntimeError,
        Kind::Value => Status::ValueError,
        Kind::Type => Status::TypeError,
        Kind::Index => Status::IndexError,
        Kind::LinAlg => Status::LinAlgError,
        Kind::NotImplemented => Status::NotImplemented,
        Kind::OutOfMemory => Status::OutOfMemory,
        Kind::Python => Status::PythonError,
    }
}

/// Whether the next plan that is built panics: there is no other way to test what a defect of ours does to the process.
pub static PANICS: AtomicBool = AtomicBool::new(false);

/// Runs `body`; errors and panics become a status.
pub fn guarded(body: impl FnOnce() -> Result<Status>) -> Status {
    without_panic(body).unwrap_or_else(|error| fail(&error))
}

/// Runs `body`; a panic becomes an error.
pub fn without_panic<T>(body: impl FnOnce() -> Result<T>) -> Result<T> {
    catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|panic| Err(Error::Internal(panic_message(&*panic))))
}

fn panic_message(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|s| (*s).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "a panic".to_owned())
}

fn done(result: Result<()>) -> Result<Status> {
    result.map(|()| Status::Ok)
}

unsafe extern "C" fn declare(schema: *const c_char, structured: bool) {
    // SAFETY: the shim passes a NUL-terminated string.
    operator::declare(&unsafe { CStr::from_ptr(schema) }.to_string_lossy(), structured);
}

unsafe extern "C" fn forget(namespace: *const c_char) {
    // SAFETY: the shim passes a NUL-terminated string.
    operator::forget(&unsafe { CStr::from_ptr(namespace) }.to_string_lossy());
}

/// The list is made once, by the one registration of the shim, and never freed.
unsafe extern "C" fn with_own_kernel() -> *const *const c_char {
    let names = operator::with_own_kernel().into_iter().filter_map(|name| CString::new(name).ok());
    let names = names.map(|name| name.into_raw().cast_const()).chain([std::ptr::null()]);
    Vec::leak(names.collect()).as_ptr()
}

unsafe extern "C" fn resolve(name: *const c_char, pointwise: bool, op: *mut abi::Operator) -> Status {
    guarded(|| {
        // SAFETY: the shim passes a NUL-terminated string.
        let name = unsafe { CStr::from_ptr(name) }.to_string_lossy();
        let Some(operator) = operator::resolve(&name, pointwise) else {
            fail(&Error::Runtime(format!("tpu: the schema of '{name}' cannot be read")));
            return Ok(Status::Miss);
        };
        // SAFETY: the shim passes a place for the answer.
        unsafe { *op = convert::operator(operator)? };
        Ok(Status::Ok)
    })
}

unsafe extern "C" fn plan(call: *const abi::Call, info: *mut abi::PlanInfo) -> Status {
    guarded(|| {
        // SAFETY: the shim's call is valid until this returns.
        let (call, args) = unsafe { (&*call, convert::args(&*call)?) };
        // SAFETY: the shim passes a place for the answer.
        let (call, info) = (convert::call(call, &args), unsafe { &mut *info });
        if lists::by_position(&call) {
            info.by_position = true;
            return Ok(Status::Ok);
        }
        match dispatch::plan(&call)? {
            Some(plan) => {
                describe(plan, info);
                Ok(Status::Ok)
            }
            None => Ok(Status::Miss),
        }
    })
}

unsafe extern "C" fn meta_failed(
    call: *const abi::Call,
    kind: *const c_char,
    message: *const c_char,
    structured: bool,
) -> Status {
    guarded(|| {
        // SAFETY: the shim passes NUL-terminated strings.
        let [kind, message] = [kind, message].map(|text| unsafe { CStr::from_ptr(text) }.to_string_lossy());
        let is_limit = meta::is_limit(&kind, &message, structured);
        // C++ says what it says on the CPU. An assertion may fail for either reason.
        if !structured
            && (!is_limit || kind.contains("AssertionError"))
            && let Some(hooks) = hooks::get()
        {
            // SAFETY: the shim's call is valid until this returns.
            let (call, args) = unsafe { (&*call, convert::args(&*call)?) };
            (hooks.refuse)(&convert::call(call, &args))?;
        }
        Ok(if is_limit { Status::Ok } else { Status::Miss })
    })
}

unsafe extern "C" fn build(
    call: *const abi::Call,
    metas: *const abi::MetaResult,
    info: *mut abi::PlanInfo,
) -> Status {
    guarded(|| {
        assert!(!PANICS.swap(false, Relaxed), "a test asked for this panic");
        runtime::stats::count(&runtime::stats::STATS.meta_runs);
        // SAFETY: the shim's structs are valid until this returns.
        let (args, metas) = unsafe { (convert::args(&*call)?, &*metas) };
        // SAFETY: as above.
        let (call, metas) = unsafe {
            let call = convert::call(&*call, &args);
            let metas = meta_result(&call, metas)?;
            (call, metas)
        };
        // SAFETY: the shim passes a place for the answer.
        let info = unsafe { &mut *info };
        let metas = meta::in_dtype_of_out(&call, meta::with_given_shape(&call, metas));
        meta::check_written(&call, &metas)?;
        out::check(&call, &metas)?;
        match meta::resized(&call, &metas) {
            Some(written) => describe_resized(written, info),
            None => describe(dispatch::build(&call, &metas)?, info),
        }
        Ok(Status::Ok)
    })
}

/// # Safety
/// Pointers of `metas` must be valid.
unsafe fn meta_result(call: &Call, metas: &abi::MetaResult) -> Result<MetaResult> {
    // SAFETY: promised by the caller.
    unsafe {
        if !metas.error.is_null() {
            let error = CStr::from_ptr(metas.error).to_string_lossy().into_owned();
            return Ok(MetaResult { error: Some(error), ..MetaResult::default() });
        }
        let mutated = convert::metas(metas.mutated, metas.nmutated)?;
        let functional = convert::metas(metas.functional, metas.nfunctional)?;
        let mutated = call.mutated_slots().into_iter().zip(mutated);
        let mutated = mutated.filter_map(|(slot, meta)| Some((slot, meta?))).collect();
        Ok(MetaResult { functional, mutated, ..MetaResult::default() })
    }
}

fn describe(plan: Arc<Plan>, info: &mut abi::PlanInfo) {
    CURRENT.with_borrow_mut(|current| {
        let recorded = &plan.recorded;
        current.outs.clear();
        current.outs.extend(recorded.outputs.iter().map(|meta| convert::meta(meta.as_ref())));
        *info = abi::PlanInfo {
            nouts: current.outs.len() as u32,
            outs: current.outs.as_ptr(),
            host_fallback: recorded.host_fallback,
            extents: if recorded.bounded.is_empty() { std::ptr::null() } else { recorded.bounded.as_ptr() },
            by_position: false,
            resized: false,
        };
        // The metadata that `outs` points into lives as long as the plan.
        current.plan = Some(plan);
    });
}

fn describe_resized(written: Vec<TensorMeta>, info: &mut abi::PlanInfo) {
    CURRENT.with_borrow_mut(|current| {
        current.resized = written;
        current.outs.clear();
        current.outs.extend(current.resized.iter().map(|meta| convert::meta(Some(meta))));
        info.outs = current.outs.as_ptr();
        info.resized = true;
    });
}

unsafe extern "C" fn execute(call: *const abi::Call, outs: *const abi::Tensor, nouts: u32) -> Status {
    guarded(|| {
        let plan = CURRENT
            .with_borrow(|current| current.plan.clone())
            .ok_or_else(|| Error::internal("execute without a plan"))?;
        // The plan has taken what it needs of the arguments, apart from two rare cases.
        let takes_arguments = !plan.recorded.checks.is_empty();
        // SAFETY: the shim's structs are valid until this returns.
        let (call, args, outs) = unsafe {
            let args = if takes_arguments { convert::args(&*call)? } else { convert::Args::new() };
            (&*call, args, convert::slice(outs, nouts as usize))
        };
        let fresh: SmallVec<[Option<&Arc<Storage>>; 4]> = outs
            .iter()
            // SAFETY: the shim made the defined outputs with storage_new.
            .map(|out| (!out.storage.is_null()).then(|| unsafe { convert::storage(out.storage) }))
            .collect();
        done(dispatch::execute(&convert::call(call, &args), &plan, &fresh))
    })
}

unsafe extern "C" fn storage_new(
    nbytes: usize,
    index: i32,
    storage: *mut *mut c_void,
    address: *mut *mut c_void,
) -> Status {
    guarded(|| {
        let new = Storage::new(device::get(index)?, nbytes).inspect_err(|_| dispatch::discard_prepared())?;
        // SAFETY: the shim passes places for the answers.
        unsafe { answer_storage(new, storage, address) };
        Ok(Status::Ok)
    })
}

/// # Safety
/// Both must be valid for writes.
unsafe fn answer_storage(new: Arc<Storage>, storage: *mut *mut c_void, address: *mut *mut c_void) {
    // SAFETY: promised by the caller.
    unsafe {
        *address = new.address() as *mut c_void;
        *storage = convert::into_handle(new);
    }
}

unsafe extern "C" fn storage_free(storage: *mut c_void) {
    // SAFETY: the DataPtr that owned the handle is gone.
    let freed = catch_unwind(AssertUnwindSafe(|| unsafe { convert::free_handle(storage) }));
    debug_assert!(freed.is_ok());
}

unsafe extern "C" fn storage_resized(
    old: *mut c_void,
    nbytes: usize,
    storage: *mut *mut c_void,
    address: *mut *mut c_void,
) -> Status {
    guarded(|| {
        // SAFETY: a live handle, and places for the answers.
        unsafe {
            let new = copies::resized(convert::storage(old), nbytes)?;
            answer_storage(new, storage, address);
        }
        Ok(Status::Ok)
    })
}

unsafe extern "C" fn copy_from_host(
    dst: *const abi::Tensor,
    src: *const abi::Tensor,
    keep: bool,
    keepalive: *mut c_void,
    release: abi::Release,
) -> Status {
    // SAFETY: the shim says that release may be called once from any thread.
    let keepalive = unsafe { Keepalive::new(keepalive, release) };
    guarded(|| {
        // SAFETY: both tensors are valid until this returns; the memory lives until the keepalive is dropped.
        unsafe {
            let (dst, src) = (&*dst, &*src);
            let dst = convert::moved_tensor(dst)?;
            let strides = convert::slice(src.strides, src.ndim as usize);
            let len = dst.numel() as usize * dst.dtype.size();
            let source = if keep {
                let region = pjrt::HostRegion::new(src.host.cast(), len, Box::new(keepalive));
                pjrt::HostSource::Borrowed(region)
            } else {
                pjrt::HostSource::Copy(convert::slice(src.host.cast(), len))
            };
            done(copies::from_host(&dst, strides, source))
        }
    })
}

unsafe extern "C" fn copy_to_host(
    dst: *const abi::Tensor,
    src: *const abi::Tensor,
    keep: bool,
    keepalive: *mut c_void,
    release: abi::Release,
) -> Status {
    // SAFETY: the shim says that release may be called once from any thread.
    let keepalive = unsafe { Keepalive::new(keepalive, release) };
    guarded(|| {
        // SAFETY: both tensors are valid until this returns; dst's memory lives until the keepalive is dropped.
        unsafe {
            let (dst, src) = (&*dst, convert::moved_tensor(&*src)?);
            if src.numel() == 0 {
                return Ok(Status::Ok);
            }
            let source = copies::for_host(&src)?;
            let len = src.numel() as usize * src.dtype.size();
            let held = (source.buffer.clone(), keepalive);
            let read = source.buffer.read_async(dst.host.cast_mut().cast(), len, Box::new(held));
            let read = read.map_err(|error| source.error(error))?;
            done(source.finish(read, !keep))
        }
    })
}

unsafe extern "C" fn copy_on_device(dst: *const abi::Tensor, src: *const abi::Tensor) -> Status {
    guarded(|| {
        // SAFETY: both tensors are valid until this returns.
        unsafe {
            let (dst, src) = (&*dst, &*src);
            let tensor = if dst.dtype == src.dtype { convert::moved_tensor } else { convert::device_tensor };
            done(copies::on_device(&tensor(dst)?, &tensor(src)?))
        }
    })
}

unsafe extern "C" fn read_scalar(src: *const abi::Tensor, out: *mut c_void) -> Status {
    guarded(|| {
        // SAFETY: the tensor is valid until this returns; out has 16 bytes.
        unsafe {
            let out = std::slice::from_raw_parts_mut(out.cast::<u8>(), 16);
            done(copies::read_scalar(&convert::device_tensor(&*src)?, out))
        }
    })
}

unsafe extern "C" fn generator_new() -> u64 {
    generator::create()
}

unsafe extern "C" fn generator_free(number: u64) {
    generator::discard(number);
}

unsafe extern "C" fn generator_state(number: u64) -> abi::RngState {
    let generator::State { seed, offset } = generator::state(number);
    abi::RngState { seed, offset }
}

unsafe extern "C" fn generator_set_state(number: u64, state: abi::RngState) -> Status {
    let abi::RngState { seed, offset } = state;
    guarded(|| done(generator::set_state(number, generator::State { seed, offset })))
}

unsafe extern "C" fn device_count() -> i32 {
    device::count() as i32
}

unsafe extern "C" fn current_device() -> i32 {
    device::current()
}

unsafe extern "C" fn exchange_device(index: i32) -> i32 {
    device::exchange(index)
}

unsafe extern "C" fn synchronize(index: i32) -> Status {
    guarded(|| done(synchronize_device(index)))
}

/// Waits for a device; nothing to wait for without a client.
pub fn synchronize_device(index: i32) -> Result<()> {
    if !device::is_started_here()? {
        return Ok(());
    }
    let index = if index < 0 { device::current() } else { index };
    device::get(index)?.synchronize()
}

unsafe extern "C" fn memory_stats(index: i32, out: *mut abi::MemoryStats) -> Status {
    guarded(|| {
        let mut stats = abi::MemoryStats::default();
        if device::is_started() {
            let device = device::get(index)?;
            let s = device.memory().statistics(device);
            stats = abi::MemoryStats {
                bytes: abi::Stat {
                    current: s.allocated_current,
                    peak: s.allocated_peak,
                    allocated: s.allocated_total,
                    freed: s.freed_total,
                },
                storages: abi::Stat {
                    current: s.blocks_current,
                    peak: s.blocks_peak,
                    allocated: s.blocks_total,
                    freed: s.blocks_freed,
                },
                ooms: s.ooms,
                free_bytes: s.free,
                total_bytes: s.total,
            };
        }
        // SAFETY: the shim passes a place for the answer.
        unsafe { *out = stats };
        Ok(Status::Ok)
    })
}

fn with_started(index: i32, act: impl FnOnce(&'static device::Device)) {
    if device::is_started()
        && let Ok(device) = device::get(index)
    {
        act(device);
    }
}

unsafe extern "C" fn reset_peak_stats(index: i32) {
    with_started(index, |device| device.memory().reset_peaks());
}

unsafe extern "C" fn reset_accumulated_stats(index: i32) {
    with_started(index, |device| device.memory().reset_accumulated());
}

unsafe extern "C" fn has_primary_context() -> bool {
    device::is_started()
}

fn supported_dtypes() -> u64 {
    ops::DType::ALL.iter().fold(0, |bits, dtype| bits | 1 << dtype.to_c10())
}

unsafe extern "C" fn device_of_address(address: *const c_void) -> i32 {
    device::of_address(address as usize).map_or(-1, |index| index as i32)
}

unsafe extern "C" fn storage_at(address: *const c_void) -> *mut c_void {
    device::storage_at(address as usize).map_or(std::ptr::null_mut(), convert::into_handle)
}

/// The table handed to the shim; lives as long as the process.
pub fn core_api(register_hooks: bool) -> &'static abi::CoreApi {
    static TABLE: OnceLock<abi::CoreApi> = OnceLock::new();
    TABLE.get_or_init(|| abi::CoreApi { register_hooks, supported_dtypes: supported_dtypes(), ..CORE_API })
}

const CORE_API: abi::CoreApi = abi::CoreApi {
    abi_version: abi::ABI_VERSION,
    size: size_of::<abi::CoreApi>() as u32,
    register_hooks: false,
    supported_dtypes: 0,
    last_error,
    declare,
    forget,
    with_own_kernel,
    resolve,
    plan,
    meta_failed,
    build,
    execute,
    storage_new,
    storage_free,
    storage_at,
    storage_resized,
    device_of_address,
    copy_from_host,
    copy_to_host,
    copy_on_device,
    read_scalar,
    generator_new,
    generator_free,
    generator_state,
    generator_set_state,
    device_count,
    current_device,
    exchange_device,
    synchronize,
    has_primary_context,
    memory_stats,
    reset_peak_stats,
    reset_accumulated_stats,
    current_stream: queue::current_stream,
    exchange_stream: queue::exchange_stream,
    new_stream: queue::new_stream,
    stream_query: queue::stream_query,
    stream_synchronize: queue::stream_synchronize,
    event_record: queue::event_record,
    event_block: queue::event_block,
    event_query: queue::event_query,
    event_synchronize: queue::event_synchronize,
    event_elapsed: queue::event_elapsed,
    event_destroy: queue::event_destroy,
    record_stream: queue::record_stream,
    pinned_new: pinned::pinned_new,
    pinned_free: pinned::pinned_free,
    is_pinned: pinned::is_pinned,
};
