//! The signature of a call: what its plan depends on, as a sequence of integers, and beside it what a plan takes at
//! run time: buffers, view starts, host scalars.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use ops::{DType, Number};
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use crate::bitcast;
use crate::call::{Call, HostTensor, Tensor, Value};
use crate::error::{Error, Result};
use crate::layout::{self, LayoutId};
use crate::storage::{Contents, Storage};
use crate::view::{self, Recipe};

/// A storage that the call touches, and its contents when the signature was taken.
#[derive(Clone)]
pub struct Bound {
    pub storage: Arc<Storage>,
    pub contents: Contents,
}

#[derive(Default)]
pub struct Signature {
    pub words: SmallVec<[u64; 96]>,
    /// Distinct storages, in order of first use.
    pub storages: SmallVec<[Bound; 6]>,
    /// Starts of views at an offset, in slot order.
    pub starts: SmallVec<[i64; 8]>,
    /// Values of host scalars, in order.
    pub hosts: SmallVec<[Number; 6]>,
    pub generator: Option<u64>,
    /// Positions of words that hold interned numbers.
    pub layout_words: SmallVec<[usize; 6]>,
    mutates: bool,
    /// (storage, mutated, offset) per device slot; only kept for operators that mutate.
    touches: SmallVec<[(u32, bool, i64); 6]>,
}

/// How a tensor lies in its storage's buffer.
#[derive(Clone, Debug)]
pub struct Placement {
    pub recipe: Recipe,
    /// Index of the recipe among the view's recipes.
    pub variant: usize,
    /// For each refined dimension (or the linear offset of a gather): its start, and whether it is an operand.
    pub starts: SmallVec<[(i64, bool); 6]>,
}

mod tag {
    pub const NONE: u64 = 1;
    pub const TENSOR: u64 = 2;
    pub const HOST_TENSOR: u64 = 3;
    pub const HOST_CONSTANT: u64 = 4;
    pub const NUMBER: u64 = 5;
    pub const SCALAR: u64 = 6;
    pub const STR: u64 = 7;
    pub const INTS: u64 = 8;
    pub const FLOATS: u64 = 9;
    pub const BOOLS: u64 = 10;
    pub const LIST: u64 = 11;
    pub const OPAQUE: u64 = 12;
    pub const ENTANGLED: u64 = 13;
}

const EMPTY: u64 = 1 << 63;

impl Signature {
    /// The signature of `call`.
    pub fn of(call: &Call) -> Result<Box<Signature>> {
        let mut signature = Box::<Signature>::default();
        signature.fill(call)?;
        Ok(signature)
    }

    /// Makes this the signature of `call`: walks the arguments once.
    pub fn fill(&mut self, call: &Call) -> Result<()> {
        self.clear();
        self.mutates = call.op.mutated != 0;
        self.words.push(u64::from(call.op.id.0) << 32 | u64::from(call.modes.0));
        for (index, arg) in call.args.iter().enumerate() {
            self.value(call, index, arg)?;
        }
        self.entangled();
        Ok(())
    }

    /// Lets go of the storages, and keeps what has been allocated.
    pub fn clear(&mut self) {
        self.words.clear();
        self.storages.clear();
        self.starts.clear();
        self.hosts.clear();
        self.generator = None;
        self.layout_words.clear();
        self.touches.clear();
    }

    fn value(&mut self, call: &Call, index: usize, value: &Value) -> Result<()> {
        match value {
            Value::None => self.words.push(tag::NONE),
            Value::Tensor(tensor) => self.tensor(call, index, tensor)?,
            Value::Host(tensor) => self.host(call, index, tensor)?,
            Value::Number { number, is_scalar } => {
                if call.op.is_operand(index, *number, *is_scalar) {
                    self.words.push(tag::SCALAR | kind(*number) << 8);
                    self.hosts.push(*number);
                } else {
                    self.words.push(tag::NUMBER | kind(*number) << 8);
                    self.number(*number);
                }
            }
            Value::Str(s) => {
                self.words.push(tag::STR | (s.len() as u64) << 8);
                for chunk in s.as_bytes().chunks(8) {
                    let mut word = [0; 8];
                    word[..chunk.len()].copy_from_slice(chunk);
                    self.words.push(u64::from_le_bytes(word));
                }
            }
            Value::Ints(ints) => {
                self.words.push(tag::INTS | (ints.len() as u64) << 8);
                self.words.extend(ints.iter().map(|&i| i as u64));
            }
            Value::Floats(floats) => {
                self.words.push(tag::FLOATS | (floats.len() as u64) << 8);
                self.words.extend(floats.iter().map(|f| f.to_bits()));
            }
            Value::Bools(bools) => {
                self.words.push(tag::BOOLS | (bools.len() as u64) << 8);
                self.words.extend(bools.iter().map(|&b| u64::from(b)));
            }
            Value::List(list) => {
                self.words.push(tag::LIST | (list.len() as u64) << 8);
                for item in list {
                    self.value(call, index, item)?;
                }
            }
            Value::Generator(generator) => {
                self.generator = Some(*generator);
                self.words.push(tag::OPAQUE);
            }
            Value::Device | Value::Other => self.words.push(tag::OPAQUE),
        }
        Ok(())
    }

    fn number(&mut self, number: Number) {
        match number {
            Number::Bool(b) => self.words.push(u64::from(b)),
            Number::Int(i) => self.words.push(i as u64),
            Number::Float(f) => self.words.push(f.to_bits()),
            Number::Complex(re, im) => self.words.extend([re.to_bits(), im.to_bits()]),
        }
    }

    fn tensor(&mut self, call: &Call, index: usize, tensor: &Tensor) -> Result<()> {
        if tensor.storage.device().index() as i32 != call.device {
            return Err(Error::Runtime(format!(
                "Expected all tensors to be on the same device, but found at least two devices, tpu:{} and tpu:{}! \
                 (when checking the arguments of {})",
                call.device,
                tensor.storage.device().index(),
                call.op.name,
            )));
        }
        let class = self.bind(tensor.storage)?;
        let flags = u64::from(tensor.conj) | u64::from(tensor.neg) << 1;
        self.words.push(
            tag::TENSOR
                | (tensor.dtype.to_c10() as u8 as u64) << 8
                | (tensor.sizes.len() as u64) << 16
                | flags << 24
                | (class as u64) << 32,
        );
        let laid_out = match &self.storages[class].contents {
            Contents::Buffer(held) => u64::from(held.layout.0),
            Contents::Empty(Some(layout)) => EMPTY | u64::from(layout.0) << 1,
            Contents::Empty(None) => EMPTY | 1 | (tensor.storage.nbytes() as u64) << 1,
            Contents::Failed(error) => return Err((**error).clone()),
        };
        let at_start = tensor.offset == 0 || laid_out & EMPTY != 0;
        self.layout_words.push(self.words.len());
        self.words.push(laid_out);
        // Pushed one by one: for the few dimensions there are, extending costs several times as much.
        for &n in tensor.sizes.iter().chain(tensor.strides) {
            self.words.push(n as u64);
        }
        if tensor.offset != 0 {
            // An uninitialised storage has no shape that the offset could be resolved in: the offset itself is key.
            self.words.push(if laid_out & EMPTY != 0 { tensor.offset as u64 } else { EMPTY });
        }
        if !at_start && let Contents::Buffer(held) = &self.storages[class].contents {
            let placement = place(held.layout, tensor)?;
            self.words.push(placement.variant as u64);
            self.starts
                .extend(placement.starts.iter().filter(|(_, operand)| *operand).map(|(start, _)| *start));
        }
        if self.mutates {
            self.touches.push((class as u32, call.op.is_mutated(index), tensor.offset));
        }
        Ok(())
    }

    fn host(&mut self, call: &Call, index: usize, tensor: &HostTensor) -> Result<()> {
        if !tensor.sizes.is_empty() {
            return Err(host_tensor_error(call, tensor));
        }
        let constant = call.op.numbers_are_attributes() && tensor.wrapped || call.op.is_attribute(index);
        let word = (tensor.dtype.to_c10() as u8 as u64) << 8 | u64::from(tensor.wrapped) << 16;
        if constant {
            self.words.push(tag::HOST_CONSTANT | word);
            self.number(tensor.number);
        } else {
            self.words.push(tag::HOST_TENSOR | word);
        }
        self.hosts.push(tensor.number);
        Ok(())
    }

    fn bind(&mut self, storage: &Arc<Storage>) -> Result<usize> {
        if let Some(class) = self.storages.iter().position(|bound| Arc::ptr_eq(&bound.storage, storage)) {
            return Ok(class);
        }
        self.storages.push(Bound { storage: storage.clone(), contents: storage.snapshot() });
        Ok(self.storages.len() - 1)
    }

    /// When a written storage is touched through several tensors, how they overlap decides the program.
    fn entangled(&mut self) {
        let touches = std::mem::take(&mut self.touches);
        for class in 0..self.storages.len() as u32 {
            let mine = || touches.iter().filter(move |(c, _, _)| *c == class);
            if mine().count() > 1 && mine().any(|(_, mutated, _)| *mutated) {
                self.words.push(tag::ENTANGLED | u64::from(class) << 32);
                self.words.extend(mine().map(|(_, _, offset)| *offset as u64));
            }
        }
        self.touches = touches;
    }

    /// Whether the offsets of this storage's tensors are part of the key rather than operands.
    pub fn is_entangled(&self, class: usize) -> bool {
        let mine = || self.touches.iter().filter(move |(c, _, _)| *c as usize == class);
        mine().count() > 1 && mine().any(|(_, mutated, _)| *mutated)
    }
}

fn kind(number: Number) -> u64 {
    match number {
        Number::Bool(_) => 0,
        Number::Int(_) => 1,
        Number::Float(_) => 2,
        Number::Complex(..) => 3,
    }
}

fn host_tensor_error(call: &Call, tensor: &HostTensor) -> Error {
    Error::Runtime(format!(
        "Expected all tensors to be on the same device, but found at least two devices, tpu:{} and cpu! (a tensor of \
         sizes {:?} among the arguments of {}; move it with .to(\"tpu\"))",
        call.device, tensor.sizes, call.op.name
    ))
}

type ViewKey = SmallVec<[i64; 14]>;

thread_local! {
    static RECIPES: RefCell<FxHashMap<ViewKey, Rc<Vec<Recipe>>>> = RefCell::default();
}

/// Views remembered per thread before the table starts afresh.
const REMEMBERED_VIEWS: usize = 8192;

/// Finds how `tensor` lies in a buffer of `layout`.
pub fn place(layout: LayoutId, tensor: &Tensor) -> Result<Placement> {
    let mut key: ViewKey = SmallVec::new();
    key.push(i64::from(layout.0) << 8 | i64::from(tensor.dtype.to_c10()));
    key.extend_from_slice(tensor.sizes);
    key.extend_from_slice(tensor.strides);
    let recipes = RECIPES.with_borrow_mut(|known| {
        if let Some(recipes) = known.get(&key) {
            return recipes.clone();
        }
        if known.len() >= REMEMBERED_VIEWS {
            known.clear();
        }
        let recipes = Rc::new(recipes_of(layout, tensor.dtype, tensor.sizes, tensor.strides));
        known.insert(key, recipes.clone());
        recipes
    });
    Ok(place_among(&recipes, tensor.offset))
}

fn recipes_of(layout: LayoutId, dtype: DType, sizes: &[i64], strides: &[i64]) -> Vec<Recipe> {
    let layout = layout::get(layout);
    let base = bitcast::reinterpreted_dims(&layout.dims, layout.dtype, dtype);
    view::recipes(&base, sizes, strides)
}

fn place_among(recipes: &[Recipe], offset: i64) -> Placement {
    let (variant, starts) = view::select(recipes, offset);
    let recipe = recipes[variant].clone();
    let starts = match &recipe {
        Recipe::Gather => SmallVec::from_slice(&[(offset, true)]),
        Recipe::Slices(slices) => {
            starts.iter().enumerate().map(|(dim, &start)| (start, slices.is_movable(dim))).collect()
        }
    };
    Placement { recipe, variant, starts }
}

/// A placement whose starts are all constants of the program.
pub fn place_fixed(layout: LayoutId, dtype: DType, sizes: &[i64], strides: &[i64], offset: i64) -> Placement {
    let mut placement = place_among(&recipes_of(layout, dtype, sizes, strides), offset);
    for (_, operand) in &mut placement.starts {
        *operand = false;
    }
    placement
}
