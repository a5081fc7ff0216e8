//! From the boundary's structs to the runtime's borrowed types.

use std::ffi::{CStr, CString, c_void};
use std::sync::Arc;

use ops::{DType, Dims, Number, TensorMeta};
use runtime::call::{HostTensor, ModeBits, Tensor, Value};
use runtime::storage::Storage;
use runtime::{Error, Result, operator};
use smallvec::SmallVec;

use crate::abi::{self, ReturnKind, Tag};

/// A storage handle, as the DataPtr context carries it.
pub fn into_handle(storage: Arc<Storage>) -> *mut c_void {
    Box::into_raw(Box::new(storage)).cast()
}

/// # Safety
/// `handle` must come from [`into_handle`] and not have been freed.
pub unsafe fn storage<'a>(handle: *mut c_void) -> &'a Arc<Storage> {
    // SAFETY: the caller promises a live Box<Arc<Storage>>.
    unsafe { &*handle.cast::<Arc<Storage>>() }
}

/// # Safety
/// As [`storage`]; the handle is dead afterwards.
pub unsafe fn free_handle(handle: *mut c_void) {
    if !handle.is_null() {
        // SAFETY: the caller promises a live Box<Arc<Storage>> that nobody uses again.
        drop(unsafe { Box::from_raw(handle.cast::<Arc<Storage>>()) });
    }
}

/// # Safety
/// `data` must be valid for `len` elements, or `len` be 0.
pub unsafe fn slice<'a, T>(data: *const T, len: usize) -> &'a [T] {
    if len == 0 {
        return &[];
    }
    // SAFETY: promised by the caller.
    unsafe { std::slice::from_raw_parts(data, len) }
}

pub fn dtype(number: i8) -> Result<DType> {
    /// `c10::ScalarType::ComplexHalf`
    const COMPLEX_HALF: i8 = 8;
    DType::from_c10(number).ok_or_else(|| Error::NotImplemented {
        op: "tpu".to_owned(),
        reason: match number {
            COMPLEX_HALF => "torch.complex32 (chalf): XLA has no complex numbers of halves".to_owned(),
            _ => format!("tensors of c10 scalar type {number} (quantised or of fewer than 8 bits)"),
        },
    })
}

/// The dtype in which a copy moves elements: those that no program computes with move as bytes. These are c10's bits
/// types, integers of fewer than 8 bits, float8_e8m0fnu and float4_e2m1fn_x2.
fn moved_dtype(number: i8) -> Result<DType> {
    match number {
        18..=21 | 30..=45 => Ok(DType::UInt8),
        22 => Ok(DType::UInt16),
        _ => dtype(number),
    }
}

/// # Safety
/// Pointers of `tensor` must be valid for `'a`.
pub unsafe fn device_tensor<'a>(tensor: &abi::Tensor) -> Result<Tensor<'a>> {
    // SAFETY: promised by the caller.
    unsafe { tensor_of(tensor, dtype(tensor.dtype)?) }
}

/// A tensor whose elements are copied to or from one of the same dtype.
///
/// # Safety
/// As [`device_tensor`].
pub unsafe fn moved_tensor<'a>(tensor: &abi::Tensor) -> Result<Tensor<'a>> {
    // SAFETY: promised by the caller.
    unsafe { tensor_of(tensor, moved_dtype(tensor.dtype)?) }
}

/// # Safety
/// As [`device_tensor`].
unsafe fn tensor_of<'a>(tensor: &abi::Tensor, dtype: DType) -> Result<Tensor<'a>> {
    if tensor.storage.is_null() {
        return Err(Error::Runtime("a tensor of another device, or without storage, was given".to_owned()));
    }
    let rank = tensor.ndim as usize;
    // SAFETY: promised by the caller.
    let (storage, sizes, strides) =
        unsafe { (storage(tensor.storage), slice(tensor.sizes, rank), slice(tensor.strides, rank)) };
    Ok(Tensor {
        storage,
        dtype,
        sizes,
        strides,
        offset: tensor.offset,
        conj: tensor.flags & abi::FLAG_CONJ != 0,
        neg: tensor.flags & abi::FLAG_NEG != 0,
    })
}

/// # Safety
/// Pointers of `tensor` must be valid for `'a`.
unsafe fn host_tensor<'a>(tensor: &abi::Tensor) -> Result<HostTensor<'a>> {
    let rank = tensor.ndim as usize;
    let dtype = dtype(tensor.dtype)?;
    if dtype.is_float8() {
        let reason = format!("a {dtype} tensor on the host beside device tensors; move it with .to(\"tpu\")");
        return Err(Error::NotImplemented { op: "tpu".to_owned(), reason });
    }
    // SAFETY: promised by the caller; a 0-dim tensor has one element.
    let (sizes, strides, number) = unsafe {
        let number = if rank == 0 && !tensor.host.is_null() {
            read_number(tensor.host.cast(), dtype)
        } else {
            Number::Int(0)
        };
        (slice(tensor.sizes, rank), slice(tensor.strides, rank), number)
    };
    if dtype == DType::UInt64 && matches!(number, Number::Int(bits) if bits < 0) {
        let reason =
            "a uint64 number above 2**63 on the host beside device tensors; move it with .to(\"tpu\")";
        return Err(Error::NotImplemented { op: "tpu".to_owned(), reason: reason.to_owned() });
    }
    let flip = tensor.flags & abi::FLAG_NEG != 0;
    let number = match number {
        Number::Float(f) if flip => Number::Float(-f),
        Number::Complex(re, im) if tensor.flags & abi::FLAG_CONJ != 0 => Number::Complex(re, -im),
        other => other,
    };
    Ok(HostTensor { dtype, sizes, strides, wrapped: tensor.flags & abi::FLAG_WRAPPED_NUMBER != 0, number })
}

/// # Safety
/// `data` must point to one element of `dtype`; it need not be aligned.
pub unsafe fn read_number(data: *const u8, dtype: DType) -> Number {
    // SAFETY: promised by the caller.
    unsafe {
        match dtype {
            DType::Bool => Number::Bool(data.read() != 0),
            DType::UInt8 => Number::Int(data.read().into()),
            DType::Int8 => Number::Int(data.cast::<i8>().read().into()),
            DType::Int16 => Number::Int(data.cast::<i16>().read_unaligned().into()),
            DType::UInt16 => Number::Int(data.cast::<u16>().read_unaligned().into()),
            DType::Int32 => Number::Int(data.cast::<i32>().read_unaligned().into()),
            DType::UInt32 => Number::Int(data.cast::<u32>().read_unaligned().into()),
            DType::Int64 | DType::UInt64 => Number::Int(data.cast::<i64>().read_unaligned()),
            DType::Float16 => Number::Float(half::f16::from_bits(data.cast::<u16>().read_unaligned()).into()),
            DType::BFloat16 => {
                Number::Float(half::bf16::from_bits(data.cast::<u16>().read_unaligned()).into())
            }
            DType::Float32 => Number::Float(data.cast::<f32>().read_unaligned().into()),
            DType::Float64 => Number::Float(data.cast::<f64>().read_unaligned()),
            DType::Complex64 => {
                let [re, im] = data.cast::<[f32; 2]>().read_unaligned();
                Number::Complex(re.into(), im.into())
            }
            DType::Complex128 => {
                let [re, im] = data.cast::<[f64; 2]>().read_unaligned();
                Number::Complex(re, im)
            }
            // float8 numbers are never host scalars of a call: PyTorch has no arithmetic for them.
            DType::Float8E5M2 | DType::Float8E4M3FN | DType::Float8E5M2FNUZ | DType::Float8E4M3FNUZ => {
                Number::Float(f64::NAN)
            }
        }
    }
}

/// # Safety
/// Pointers of `value` must be valid for `'a`.
unsafe fn value<'a>(value: &abi::Value) -> Result<Value<'a>> {
    let is_scalar = value.is_scalar;
    // SAFETY: the tag says which member of the union is set, and the caller promises its pointers.
    unsafe {
        Ok(match value.tag {
            Tag::None => Value::None,
            Tag::Tensor if !value.u.tensor.storage.is_null() => {
                Value::Tensor(device_tensor(&value.u.tensor)?)
            }
            Tag::Tensor => Value::Host(host_tensor(&value.u.tensor)?),
            Tag::Int => Value::Number { number: Number::Int(value.u.i), is_scalar },
            Tag::Double => Value::Number { number: Number::Float(value.u.d), is_scalar },
            Tag::Bool => Value::Number { number: Number::Bool(value.u.i != 0), is_scalar },
            Tag::Complex => Value::Number { number: Number::Complex(value.u.c[0], value.u.c[1]), is_scalar },
            Tag::String => Value::Str(CStr::from_ptr(value.u.string).to_str().unwrap_or("")),
            Tag::IntList => Value::Ints(slice(value.u.list.data.cast(), value.u.list.len)),
            Tag::DoubleList => Value::Floats(slice(value.u.list.data.cast(), value.u.list.len)),
            Tag::BoolList => Value::Bools(slice(value.u.list.data.cast(), value.u.list.len)),
            Tag::ValueList => {
                let items: &[abi::Value] = slice(value.u.list.data.cast(), value.u.list.len);
                Value::List(items.iter().map(|item| self::value(item)).collect::<Result<_>>()?)
            }
            Tag::Device => Value::Device,
            Tag::Generator => Value::Generator(value.u.generator),
            Tag::Other => Value::Other,
        })
    }
}

/// Leaks: called once for each operator.
pub fn operator(operator: &operator::Operator) -> Result<abi::Operator> {
    let schema = &operator.schema;
    let arguments = schema.arguments.iter().enumerate().map(|(index, argument)| abi::Argument {
        is_scalar: argument.ty.is_scalar(),
        is_written: operator.is_mutated(index),
        is_out: argument.is_out,
    });
    let returns = (0..schema.returns.len()).map(|index| match schema.returned_argument(index) {
        Some(argument) => abi::Return { kind: ReturnKind::Argument, argument: argument as u8 },
        None if schema.returns[index].is_list() => abi::Return { kind: ReturnKind::TensorList, argument: 0 },
        None if schema.returns[index].name == "Tensor" => {
            abi::Return { kind: ReturnKind::Tensor, argument: 0 }
        }
        None => abi::Return { kind: ReturnKind::Number, argument: 0 },
    });
    let (arguments, returns): (Vec<_>, Vec<_>) = (arguments.collect(), returns.collect());
    let count = |kind| returns.iter().filter(|value| value.kind == kind).count();
    if count(ReturnKind::TensorList) > 1 {
        let reason = "several tensor lists are returned".to_owned();
        return Err(Error::NotImplemented { op: operator.name.clone(), reason });
    }
    let functional = CString::new(operator.functional.as_str()).ok().filter(|_| operator.has_functional);
    Ok(abi::Operator {
        id: operator.id.0,
        nargs: arguments.len() as u32,
        nreturns: returns.len() as u32,
        single_outputs: (count(ReturnKind::Tensor) + count(ReturnKind::Number)) as u32,
        writes: operator.mutated != 0,
        has_indices: schema.arguments.iter().any(|argument| argument.ty.name == "Tensor?[]"),
        pointwise: operator.is_pointwise,
        arguments: Vec::leak(arguments).as_ptr(),
        returns: Vec::leak(returns).as_ptr(),
        functional: functional.map_or(std::ptr::null(), |name| name.into_raw().cast_const()),
    })
}

pub type Args<'a> = SmallVec<[Value<'a>; 8]>;

/// # Safety
/// `call` and all its pointers must be valid for `'a`.
pub unsafe fn args<'a>(call: &abi::Call) -> Result<Args<'a>> {
    let mut args = Args::new();
    // SAFETY: promised by the caller.
    for arg in unsafe { slice(call.args, call.nargs as usize) } {
        // SAFETY: as above.
        args.push(unsafe { value(arg)? });
    }
    Ok(args)
}

pub fn call<'a>(call: &abi::Call, args: &'a [Value<'a>]) -> runtime::call::Call<'a> {
    runtime::call::Call {
        op: operator::get(operator::OpId(call.op)),
        args,
        modes: ModeBits(call.modes),
        device: call.device,
    }
}

/// # Safety
/// `metas` must be valid for `count` entries, and so must their pointers.
pub unsafe fn metas(metas: *const abi::Meta, count: u32) -> Result<Vec<Option<TensorMeta>>> {
    // SAFETY: promised by the caller.
    unsafe { slice(metas, count as usize) }
        .iter()
        .map(|meta| {
            if meta.dtype < 0 {
                return Ok(None);
            }
            let rank = meta.ndim as usize;
            // SAFETY: promised by the caller.
            let (sizes, strides) = unsafe { (slice(meta.sizes, rank), slice(meta.strides, rank)) };
            Ok(Some(TensorMeta {
                dtype: dtype(meta.dtype)?,
                sizes: Dims::from_slice(sizes),
                strides: Dims::from_slice(strides),
            }))
        })
        .collect()
}

/// The struct for a meta that outlives the call.
pub fn meta(meta: Option<&TensorMeta>) -> abi::Meta {
    match meta {
        None => abi::Meta { sizes: std::ptr::null(), strides: std::ptr::null(), ndim: 0, dtype: -1 },
        Some(meta) => abi::Meta {
            sizes: meta.sizes.as_ptr(),
            strides: meta.strides.as_ptr(),
            ndim: meta.sizes.len() as i32,
            dtype: meta.dtype.to_c10(),
        },
    }
}

/// Calls `release(keepalive)` exactly once, when dropped.
pub struct Keepalive {
    keepalive: *mut c_void,
    release: abi::Release,
}

// SAFETY: the boundary says that release may be called on any thread.
unsafe impl Send for Keepalive {}

impl Keepalive {
    /// # Safety
    /// `release(keepalive)` must be callable once from any thread.
    pub unsafe fn new(keepalive: *mut c_void, release: abi::Release) -> Self {
        Keepalive { keepalive, release }
    }
}

impl Drop for Keepalive {
    fn drop(&mut self) {
        // SAFETY: promised to `new`.
        unsafe { (self.release)(self.keepalive) }
    }
}
