//! One dispatched call, as the front end hands it over: borrowed, nothing copied.

use std::sync::Arc;

use ops::{DType, Dims, Number, TensorMeta};

use crate::operator::Operator;
use crate::storage::Storage;

/// A tensor on the device.
#[derive(Clone, Copy)]
pub struct Tensor<'a> {
    pub storage: &'a Arc<Storage>,
    pub dtype: DType,
    pub sizes: &'a [i64],
    pub strides: &'a [i64],
    pub offset: i64,
    pub conj: bool,
    pub neg: bool,
}

impl Tensor<'_> {
    pub fn numel(&self) -> i64 {
        self.sizes.iter().product()
    }

    /// Whether both are the same elements in the same order.
    pub fn is_same(&self, other: &Tensor) -> bool {
        Arc::ptr_eq(self.storage, other.storage)
            && self.offset == other.offset
            && self.dtype == other.dtype
            && self.sizes == other.sizes
            && self.strides == other.strides
            && self.conj == other.conj
            && self.neg == other.neg
    }

    pub fn meta(&self) -> TensorMeta {
        TensorMeta {
            dtype: self.dtype,
            sizes: Dims::from_slice(self.sizes),
            strides: Dims::from_slice(self.strides),
        }
    }
}

/// A tensor in host memory.
#[derive(Clone, Copy)]
pub struct HostTensor<'a> {
    pub dtype: DType,
    pub sizes: &'a [i64],
    pub strides: &'a [i64],
    /// A Python number that became a 0-dim tensor.
    pub wrapped: bool,
    /// Value of a 0-dim tensor.
    pub number: Number,
}

impl HostTensor<'_> {
    pub fn meta(&self) -> TensorMeta {
        TensorMeta {
            dtype: self.dtype,
            sizes: Dims::from_slice(self.sizes),
            strides: Dims::from_slice(self.strides),
        }
    }
}

#[derive(Clone)]
pub enum Value<'a> {
    None,
    Tensor(Tensor<'a>),
    Host(HostTensor<'a>),
    /// `is_scalar`: the schema type is `Scalar`; otherwise an int, float or bool attribute.
    Number {
        number: Number,
        is_scalar: bool,
    },
    Str(&'a str),
    Ints(&'a [i64]),
    Floats(&'a [f64]),
    Bools(&'a [u8]),
    List(Vec<Value<'a>>),
    /// By its number, see [`crate::generator`].
    Generator(u64),
    Device,
    Other,
}

pub struct Call<'a> {
    pub op: &'static Operator,
    pub args: &'a [Value<'a>],
    pub modes: ModeBits,
    pub device: i32,
}

impl Call<'_> {
    /// Slots of the tensors that the call writes.
    pub fn mutated_slots(&self) -> Vec<usize> {
        let (mut slots, mut next) = (Vec::new(), 0);
        for (index, arg) in self.args.iter().enumerate() {
            for_each_tensor(std::slice::from_ref(arg), &mut |_, _| {
                if self.op.is_mutated(index) {
                    slots.push(next);
                }
                next += 1;
            });
        }
        slots
    }

    /// Metadata of the tensors given as `out=`.
    pub fn out(&self) -> Vec<TensorMeta> {
        let given = self.args.iter().zip(&self.op.schema.arguments).filter(|(_, argument)| argument.is_out);
        let given = given.filter_map(|(arg, _)| match arg {
            Value::Tensor(tensor) => Some(tensor.meta()),
            Value::Host(host) => Some(host.meta()),
            _ => None,
        });
        given.collect()
    }
}

/// Global modes as the shim packs them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ModeBits(pub u32);

impl ModeBits {
    pub fn unpack(self) -> ops::Modes {
        ops::Modes {
            matmul_precision: match self.0 & 3 {
                0 => ops::Precision::Highest,
                1 => ops::Precision::High,
                _ => ops::Precision::Medium,
            },
            deterministic: self.0 & 4 != 0,
            default_dtype: DType::from_c10((self.0 >> 8) as i8).unwrap_or(DType::Float32),
        }
    }
}

/// Visits the tensors of a call depth first, numbering them: a tensor's number is its slot.
pub fn for_each_tensor<'a>(args: &'a [Value<'a>], visit: &mut impl FnMut(usize, &'a Value<'a>)) {
    fn walk<'a>(args: &'a [Value<'a>], slot: &mut usize, visit: &mut impl FnMut(usize, &'a Value<'a>)) {
        for arg in args {
            match arg {
                Value::Tensor(_) | Value::Host(_) => {
                    visit(*slot, arg);
                    *slot += 1;
                }
                Value::List(list) => walk(list, slot, visit),
                _ => {}
            }
        }
    }
    walk(args, &mut 0, visit);
}
