//! The Rust mirror of `csrc/shim.h`. Keep the two in step.

use std::ffi::{c_char, c_void};

pub const ABI_VERSION: u32 = 2;

pub const FLAG_WRAPPED_NUMBER: u8 = 1;
pub const FLAG_CONJ: u8 = 2;
pub const FLAG_NEG: u8 = 4;

#[repr(C)]
#[derive(Clone, Copy)]
pub struct Tensor {
    pub storage: *mut c_void,
    pub host: *const c_void,
    pub sizes: *const i64,
    pub strides: *const i64,
    pub offset: i64,
    pub ndim: i32,
    pub dtype: i8,
    pub device_type: i8,
    pub device_index: i8,
    pub flags: u8,
}

pub mod tag {
    pub const NONE: i32 = 0;
    pub const TENSOR: i32 = 1;
    pub const INT: i32 = 2;
    pub const DOUBLE: i32 = 3;
    pub const BOOL: i32 = 4;
    pub const COMPLEX: i32 = 5;
    pub const STRING: i32 = 6;
    pub const INT_LIST: i32 = 7;
    pub const DOUBLE_LIST: i32 = 8;
    pub const BOOL_LIST: i32 = 9;
    pub const VALUE_LIST: i32 = 10;
    pub const DEVICE: i32 = 11;
    pub const GENERATOR: i32 = 12;
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct List {
    pub data: *const c_void,
    pub len: usize,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub union Payload {
    pub i: i64,
    pub d: f64,
    pub c: [f64; 2],
    pub string: *const c_char,
    pub generator: *mut c_void,
    pub list: List,
    pub tensor: Tensor,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct Value {
    pub tag: i32,
    pub is_scalar: i32,
    pub u: Payload,
}

#[repr(C)]
pub struct Call {
    pub op: u32,
    pub nargs: u32,
    pub args: *const Value,
    pub modes: u32,
    pub device: i32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct Meta {
    pub sizes: *const i64,
    pub strides: *const i64,
    pub ndim: i32,
    /// c10::ScalarType; -1: undefined tensor
    pub dtype: i8,
}

#[repr(C)]
pub struct PlanInfo {
    pub nouts: u32,
    pub outs: *const Meta,
    pub host_fallback: u32,
    pub bounded: u32,
    pub by_position: u32,
}

#[repr(C)]
pub struct MetaResult {
    pub nfunctional: u32,
    pub functional: *const Meta,
    pub nmutated: u32,
    pub mutated: *const Meta,
    pub error: *const c_char,
}

pub mod status {
    pub const OK: i32 = 0;
    pub const MISS: i32 = 1;
    pub const RUNTIME_ERROR: i32 = 16;
    pub const VALUE_ERROR: i32 = 17;
    pub const TYPE_ERROR: i32 = 18;
    pub const INDEX_ERROR: i32 = 19;
    pub const NOT_IMPLEMENTED: i32 = 20;
    pub const OUT_OF_MEMORY: i32 = 21;
    pub const PYTHON_ERROR: i32 = 22;
}

#[repr(C)]
#[derive(Default)]
pub struct Stat {
    pub current: i64,
    pub peak: i64,
    pub allocated: i64,
    pub freed: i64,
}

#[repr(C)]
#[derive(Default)]
pub struct MemoryStats {
    pub bytes: Stat,
    pub storages: Stat,
    pub ooms: i64,
    pub free_bytes: i64,
    pub total_bytes: i64,
}

pub type Release = unsafe extern "C" fn(*mut c_void);

#[repr(C)]
pub struct CoreApi {
    pub abi_version: u32,
    pub size: u32,
    /// Whether to become PyTorch's accelerator.
    pub register_hooks: i32,
    pub supported_dtypes: u64,
    pub last_error: unsafe extern "C" fn() -> *const c_char,

    pub native_ops: unsafe extern "C" fn() -> *const *const c_char,
    pub resolve: unsafe extern "C" fn(*const c_char, *const c_char, u64, *mut u32) -> i32,
    pub plan: unsafe extern "C" fn(*const Call, *mut PlanInfo) -> i32,
    pub build: unsafe extern "C" fn(*const Call, *const MetaResult, *mut PlanInfo) -> i32,
    pub execute: unsafe extern "C" fn(*const Call, *const Tensor, u32) -> i32,

    pub storage_new: unsafe extern "C" fn(usize, i32, *mut *mut c_void, *mut *mut c_void) -> i32,
    pub storage_free: unsafe extern "C" fn(*mut c_void),
    pub storage_at: unsafe extern "C" fn(*const c_void) -> *mut c_void,
    pub storage_resized: unsafe extern "C" fn(*mut c_void, usize, *mut *mut c_void, *mut *mut c_void) -> i32,
    pub device_of_address: unsafe extern "C" fn(*const c_void) -> i32,

    pub copy_from_host:
        unsafe extern "C" fn(*const Tensor, *const Tensor, i32, *mut c_void, Option<Release>) -> i32,
    pub copy_to_host:
        unsafe extern "C" fn(*const Tensor, *const Tensor, i32, *mut c_void, Option<Release>) -> i32,
    pub copy_on_device: unsafe extern "C" fn(*const Tensor, *const Tensor) -> i32,
    pub read_scalar: unsafe extern "C" fn(*const Tensor, *mut c_void) -> i32,

    pub device_count: unsafe extern "C" fn() -> i32,
    pub current_device: unsafe extern "C" fn() -> i32,
    pub exchange_device: unsafe extern "C" fn(i32) -> i32,
    pub synchronize: unsafe extern "C" fn(i32) -> i32,
    pub has_primary_context: unsafe extern "C" fn() -> i32,
    pub memory_stats: unsafe extern "C" fn(i32, *mut MemoryStats) -> i32,
    pub reset_peak_stats: unsafe extern "C" fn(i32),
    pub reset_accumulated_stats: unsafe extern "C" fn(i32),

    pub current_stream: unsafe extern "C" fn(i32) -> i64,
    pub exchange_stream: unsafe extern "C" fn(i32, i64) -> i64,
    pub new_stream: unsafe extern "C" fn(i32, i32) -> i64,
    pub stream_query: unsafe extern "C" fn(i32, i64, *mut i32) -> i32,
    pub stream_synchronize: unsafe extern "C" fn(i32, i64) -> i32,
    pub event_record: unsafe extern "C" fn(*mut *mut c_void, i32, i64, i32) -> i32,
    pub event_block: unsafe extern "C" fn(*mut c_void, i32, i64) -> i32,
    pub event_query: unsafe extern "C" fn(*mut c_void, *mut i32) -> i32,
    pub event_synchronize: unsafe extern "C" fn(*mut c_void) -> i32,
    pub event_elapsed: unsafe extern "C" fn(*mut c_void, *mut c_void, *mut f64) -> i32,
    pub event_destroy: unsafe extern "C" fn(*mut c_void),
    pub record_stream: unsafe extern "C" fn(*mut c_void, i64),

    pub pinned_new: unsafe extern "C" fn(usize) -> *mut c_void,
    pub pinned_free: unsafe extern "C" fn(*mut c_void),
    pub is_pinned: unsafe extern "C" fn(*const c_void) -> i32,
}

#[repr(C)]
pub struct ShimApi {
    pub abi_version: u32,
    pub size: u32,
    pub rng_advance: unsafe extern "C" fn(*mut c_void, i32, u64, *mut u64, *mut u64) -> i32,
    pub set_default_generator: unsafe extern "C" fn(i32, u64, u64) -> i32,
}

/// `tpu_shim_register`
pub type Register = unsafe extern "C" fn(*const CoreApi, *mut *const c_char) -> *const ShimApi;
