//! The plain-C boundary between the C++ shim (one per torch minor) and the Rust core: no C++ type, no exception and no
//! operator knowledge crosses it.
//!
//! The shim's header is generated from this file when the shim is built; a change here bumps [`ABI_VERSION`].

use std::ffi::{c_char, c_void};

pub const ABI_VERSION: u32 = 4;

pub const FLAG_WRAPPED_NUMBER: u8 = 1;
pub const FLAG_CONJ: u8 = 2;
pub const FLAG_NEG: u8 = 4;

/// An argument of an operator.
#[repr(C)]
pub struct Argument {
    /// The schema type is Scalar, Scalar? or Scalar[].
    pub is_scalar: bool,
    pub is_written: bool,
    /// Written and passed by keyword alone.
    pub is_out: bool,
}

#[repr(u8)]
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum ReturnKind {
    /// The written argument `argument`.
    Argument,
    Tensor,
    TensorList,
    Number,
}

#[repr(C)]
pub struct Return {
    pub kind: ReturnKind,
    pub argument: u8,
}

/// What the core knows of an operator. Lives as long as the process.
#[repr(C)]
pub struct Operator {
    pub id: u32,
    pub nargs: u32,
    pub arguments: *const Argument,
    pub nreturns: u32,
    pub returns: *const Return,
    /// The returns that take exactly one fresh output.
    pub single_outputs: u32,
    pub writes: bool,
    /// Whether an argument is a list of indices, Tensor?[].
    pub has_indices: bool,
    /// Whether no matrix product can be in it: its precision need not be asked, which is a hash table's lookup.
    pub pointwise: bool,
    /// The operator that computes what this one writes: it takes the same arguments without the out ones. Null: none.
    pub functional: *const c_char,
}

/// A strided tensor.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Tensor {
    /// On the device: the core's handle, which is the DataPtr's context.
    pub storage: *mut c_void,
    /// On the host: the address of the first element.
    pub host: *const c_void,
    pub sizes: *const i64,
    pub strides: *const i64,
    /// In elements.
    pub offset: i64,
    pub ndim: i32,
    /// c10::ScalarType
    pub dtype: i8,
    pub device_type: i8,
    pub device_index: i8,
    pub flags: u8,
}

/// Which member of a [`Payload`] is set.
#[repr(i32)]
#[derive(Clone, Copy)]
#[allow(dead_code)]
pub enum Tag {
    /// Also an undefined tensor.
    None,
    Tensor,
    /// `i`; also SymInt, dtype, layout and memory format.
    Int,
    Double,
    /// `i`
    Bool,
    Complex,
    /// NUL-terminated.
    String,
    /// `list` of int64_t
    IntList,
    /// `list` of double
    DoubleList,
    /// `list` of uint8_t
    BoolList,
    /// `list` of Value: lists of tensors, of optional tensors, of Scalars.
    ValueList,
    Device,
    /// `generator`, its number
    Generator,
    Other,
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
    pub generator: u64,
    pub list: List,
    pub tensor: Tensor,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct Value {
    pub tag: Tag,
    /// Whether the schema type is Scalar (or Scalar?, Scalar[]): a run-time operand unless the operator declares it an
    /// attribute.
    pub is_scalar: bool,
    pub u: Payload,
}

#[repr(C)]
pub struct Call {
    pub op: u32,
    pub nargs: u32,
    pub args: *const Value,
    /// Global modes that change programs: bits 0-1 float32 matmul precision (0 highest, 1 high, 2 medium), bit 2
    /// deterministic algorithms, bits 8-15 default dtype.
    pub modes: u32,
    /// Of the first device tensor or Device argument, else the current one.
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

/// How fresh outputs reach the caller: a Tensor return takes the next output, a Tensor[] return all that the other
/// returns leave, a number return one 0-d output. Returns annotated as written are the argument itself.
#[repr(C)]
pub struct PlanInfo {
    /// Fresh outputs, flattened.
    pub nouts: u32,
    pub outs: *const Meta,
    /// Run at::native::cpu_fallback: the policy allows it.
    pub host_fallback: bool,
    /// Null, or where sizes depend on values: the last output, 0-d, counts an extent, and this says which dimension it
    /// is of each of the others (-1: of none). They are as large as they can be, what is valid first.
    pub extents: *const i8,
    /// A list that the call writes shares memory with another position of its lists: one program for all positions
    /// would not see what the earlier ones write.
    pub by_position: bool,
    /// There is no plan yet: `outs` say what the written tensors have to become first.
    pub resized: bool,
}

/// What PyTorch says about a call from metadata alone.
#[repr(C)]
pub struct MetaResult {
    /// Flattened outputs: fresh ones, then the new value of each written tensor, as the functional form gives it where
    /// there is one.
    pub nfunctional: u32,
    pub functional: *const Meta,
    /// Written tensors, in the order of the arguments: their metadata after the call.
    pub nmutated: u32,
    pub mutated: *const Meta,
    /// Why there is no metadata (the core decides: host fallback or error), or null.
    pub error: *const c_char,
}

#[repr(i32)]
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Status {
    Ok = 0,
    /// Of `plan`: find the metadata, then call `build`. Of `resolve`: declare the operator first.
    Miss = 1,
    // The exception to raise; its message is `last_error`'s.
    RuntimeError = 16,
    ValueError,
    TypeError,
    IndexError,
    LinAlgError,
    NotImplemented,
    OutOfMemory,
    /// Set on this thread.
    PythonError,
}

#[repr(C)]
pub struct RngState {
    pub seed: u64,
    pub offset: u64,
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

/// What the core offers.
#[repr(C)]
pub struct CoreApi {
    pub abi_version: u32,
    pub size: u32,
    /// Whether to become PyTorch's accelerator.
    pub register_hooks: bool,
    /// Bit i: c10::ScalarType i.
    pub supported_dtypes: u64,
    pub last_error: unsafe extern "C" fn() -> *const c_char,

    /// Makes an operator known, so that functional forms are found among all.
    pub declare: unsafe extern "C" fn(schema: *const c_char, structured: bool),
    /// The operators of a namespace are declared and resolved anew: PyTorch removed some.
    pub forget: unsafe extern "C" fn(namespace_: *const c_char),
    /// "aten::add.Tensor", ...: the declared operators that want a kernel of their own; ends with null.
    pub with_own_kernel: unsafe extern "C" fn() -> *const *const c_char,
    /// Miss: not declared. pointwise: PyTorch's tag.
    pub resolve: unsafe extern "C" fn(name: *const c_char, pointwise: bool, op: *mut Operator) -> Status,
    /// Fills what is valid until the thread's next plan.
    pub plan: unsafe extern "C" fn(*const Call, *mut PlanInfo) -> Status,
    /// What to make of an exception of a Meta kernel, by the name of its type: Ok when it only says that the kernel cannot
    /// answer, Miss when it is to be raised, else the status of what is raised in its place. structured: the kernel is C++
    /// that computes shapes.
    pub meta_failed: unsafe extern "C" fn(
        *const Call,
        kind: *const c_char,
        message: *const c_char,
        structured: bool,
    ) -> Status,
    pub build: unsafe extern "C" fn(*const Call, *const MetaResult, *mut PlanInfo) -> Status,
    pub execute: unsafe extern "C" fn(*const Call, outs: *const Tensor, nouts: u32) -> Status,

    /// *storage is never null on Ok; *address is null for 0 bytes.
    pub storage_new: unsafe extern "C" fn(
        nbytes: usize,
        device: i32,
        storage: *mut *mut c_void,
        address: *mut *mut c_void,
    ) -> Status,
    pub storage_free: unsafe extern "C" fn(storage: *mut c_void),
    /// Another handle of the storage that starts there, or null.
    pub storage_at: unsafe extern "C" fn(address: *const c_void) -> *mut c_void,
    /// A new storage with the common prefix of old's bytes.
    pub storage_resized: unsafe extern "C" fn(
        old: *mut c_void,
        nbytes: usize,
        storage: *mut *mut c_void,
        address: *mut *mut c_void,
    ) -> Status,
    /// -1: no device's.
    pub device_of_address: unsafe extern "C" fn(address: *const c_void) -> i32,

    /// Between a device tensor and a host tensor of its dtype and sizes, dense in the device tensor's memory order (to
    /// the host: contiguous where src is not dense). From the host neither side's flags count, to the host src's do.
    /// keep: the host memory may be read or written until release(keepalive); else the copy is complete on return.
    /// release is called once in any case, maybe on another thread without the GIL.
    pub copy_from_host: unsafe extern "C" fn(
        dst: *const Tensor,
        src: *const Tensor,
        keep: bool,
        keepalive: *mut c_void,
        release: Release,
    ) -> Status,
    pub copy_to_host: unsafe extern "C" fn(
        dst: *const Tensor,
        src: *const Tensor,
        keep: bool,
        keepalive: *mut c_void,
        release: Release,
    ) -> Status,
    /// Equal sizes; any dtypes, strides and flags.
    pub copy_on_device: unsafe extern "C" fn(dst: *const Tensor, src: *const Tensor) -> Status,
    /// One element, up to 16 bytes.
    pub read_scalar: unsafe extern "C" fn(src: *const Tensor, out: *mut c_void) -> Status,

    pub generator_new: unsafe extern "C" fn() -> u64,
    pub generator_free: unsafe extern "C" fn(generator: u64),
    /// The default generator of a device has the device's index for its number.
    pub generator_state: unsafe extern "C" fn(generator: u64) -> RngState,
    pub generator_set_state: unsafe extern "C" fn(generator: u64, RngState) -> Status,

    /// Starts no client.
    pub device_count: unsafe extern "C" fn() -> i32,
    pub current_device: unsafe extern "C" fn() -> i32,
    /// The previous index; -1 changes nothing.
    pub exchange_device: unsafe extern "C" fn(device: i32) -> i32,
    pub synchronize: unsafe extern "C" fn(device: i32) -> Status,
    pub has_primary_context: unsafe extern "C" fn() -> bool,
    pub memory_stats: unsafe extern "C" fn(device: i32, *mut MemoryStats) -> Status,
    pub reset_peak_stats: unsafe extern "C" fn(device: i32),
    pub reset_accumulated_stats: unsafe extern "C" fn(device: i32),

    pub current_stream: unsafe extern "C" fn(device: i32) -> i64,
    pub exchange_stream: unsafe extern "C" fn(device: i32, stream: i64) -> i64,
    pub new_stream: unsafe extern "C" fn(device: i32, priority: i32, stream: *mut i64) -> Status,
    pub stream_query: unsafe extern "C" fn(device: i32, stream: i64, done: *mut bool) -> Status,
    pub stream_synchronize: unsafe extern "C" fn(device: i32, stream: i64) -> Status,
    /// An event that is null has not been recorded yet: waiting for it returns at once.
    pub event_record:
        unsafe extern "C" fn(event: *mut *mut c_void, device: i32, stream: i64, timing: bool) -> Status,
    pub event_block: unsafe extern "C" fn(event: *mut c_void, device: i32, stream: i64) -> Status,
    pub event_query: unsafe extern "C" fn(event: *mut c_void, done: *mut bool) -> Status,
    pub event_synchronize: unsafe extern "C" fn(event: *mut c_void) -> Status,
    pub event_elapsed:
        unsafe extern "C" fn(start: *mut c_void, end: *mut c_void, milliseconds: *mut f64) -> Status,
    pub event_destroy: unsafe extern "C" fn(event: *mut c_void),
    pub record_stream: unsafe extern "C" fn(storage: *mut c_void, stream: i64),

    /// Null: out of memory.
    pub pinned_new: unsafe extern "C" fn(nbytes: usize) -> *mut c_void,
    pub pinned_free: unsafe extern "C" fn(*mut c_void),
    pub is_pinned: unsafe extern "C" fn(*const c_void) -> bool,
}

/// `tpu_shim_register`, the one symbol of the shim: keeps `core`, which must live as long as the process, and registers
/// every kernel. Null, or why it failed (static storage). Call once, after `import torch`, with the GIL held.
pub type Register = unsafe extern "C" fn(core: *const CoreApi) -> *const c_char;
