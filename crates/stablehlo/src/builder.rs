use crate::ir::{ArgumentAttr, Attr, Def, Graph, Op, Region, Syntax, Value, ValueInfo, Values};
use crate::{Dims, ElementType, Error, Module, OperandTypes, Result, TensorType};
use smallvec::SmallVec;
use std::collections::HashMap;

/// A module under construction. The order of calls fixes the text: the same calls give the same bytes.
///
/// Inside the closures that build regions the same builder is used; operations go to the region.
/// A region of `while_loop`, `if_else` or `case` may use values from outside; the regions of reductions,
/// sorts and scatters may use only their arguments and constants (a constant from outside is copied in).
pub struct Builder {
    name: String,
    pub(crate) values: Vec<ValueInfo>,
    pub(crate) ops: Vec<Op>,
    parameters: Vec<Value>,
    arguments: Vec<ArgumentAttr>,
    frames: Vec<Frame>,
    next_scope: u32,
    deferred: Option<Error>,
}

struct Frame {
    scope: u32,
    isolated: bool,
    ops: Vec<u32>,
    /// Constants and their broadcasts by printed form, so that each is emitted once per scope.
    reuse: HashMap<ReuseKey, Value>,
}

#[derive(PartialEq, Eq, Hash, Clone)]
pub(crate) enum ReuseKey {
    Constant(TensorType, String),
    Broadcast(Value, Dims),
    Iota(TensorType, i64),
}

pub(crate) type Attrs = Vec<(&'static str, Attr)>;

impl Builder {
    pub fn new(name: impl Into<String>) -> Self {
        Builder {
            name: name.into(),
            values: Vec::new(),
            ops: Vec::new(),
            parameters: Vec::new(),
            arguments: Vec::new(),
            frames: vec![Frame { scope: 0, isolated: false, ops: Vec::new(), reuse: HashMap::new() }],
            next_scope: 1,
            deferred: None,
        }
    }

    /// Adds the next parameter of the module. An impossible type is reported by [`Builder::finish`].
    pub fn parameter(&mut self, ty: TensorType) -> Value {
        if let Err(error) = check_type(&ty) {
            self.deferred.get_or_insert(error);
        }
        let index = self.parameters.len() as u32;
        let value = self.new_value(ty, Def::Parameter(index), 0);
        self.parameters.push(value);
        self.arguments.push(ArgumentAttr::None);
        value
    }

    /// Donates the buffer of a parameter to a result of the same type (`tf.aliasing_output`).
    /// Both indices are checked by [`Builder::finish`].
    pub fn alias(&mut self, parameter: usize, result: usize) {
        match self.arguments.get_mut(parameter) {
            Some(argument) => *argument = ArgumentAttr::Alias(result),
            None => {
                let rule = format!("there are {} parameters", self.parameters.len());
                self.deferred.get_or_insert(Error::Alias { parameter, result, rule });
            }
        }
    }

    /// Lets the compiler reuse the buffer of a parameter for any result (`jax.buffer_donor`).
    pub fn donate(&mut self, parameter: usize) {
        match self.arguments.get_mut(parameter) {
            Some(argument) => *argument = ArgumentAttr::Donor,
            None => {
                let rule = format!("there are {} parameters", self.parameters.len());
                self.deferred.get_or_insert(Error::Alias { parameter, result: 0, rule });
            }
        }
    }

    /// The type of a value of this builder. Panics for a value of another builder whose id is out of range.
    pub fn ty(&self, value: Value) -> &TensorType {
        &self.values[value.index()].ty
    }

    pub fn dims(&self, value: Value) -> &[i64] {
        &self.ty(value).dims
    }

    pub fn elem(&self, value: Value) -> ElementType {
        self.ty(value).elem
    }

    pub fn rank(&self, value: Value) -> usize {
        self.ty(value).dims.len()
    }

    pub fn parameter_count(&self) -> usize {
        self.parameters.len()
    }

    /// Closes the module. Operations that no result depends on are dropped; parameters stay.
    pub fn finish(mut self, results: &[Value]) -> Result<Module> {
        if let Some(error) = self.deferred.take() {
            return Err(error);
        }
        let results: Vec<Value> =
            results.iter().map(|&v| self.visible("return", v)).collect::<Result<_>>()?;
        let mut aliased = vec![false; results.len()];
        for (parameter, argument) in self.arguments.iter().enumerate() {
            let &ArgumentAttr::Alias(result) = argument else { continue };
            let ty = self.ty(self.parameters[parameter]);
            let rule = match results.get(result) {
                None => format!("there are {} results", results.len()),
                Some(_) if aliased[result] => "another parameter is already aliased to it".to_string(),
                Some(&r) if self.ty(r) != ty => format!("the types {ty} and {} differ", self.ty(r)),
                Some(_) => {
                    aliased[result] = true;
                    continue;
                }
            };
            return Err(Error::Alias { parameter, result, rule });
        }
        let live = self.live_ops(&results);
        let body = std::mem::take(&mut self.frames[0].ops);
        Ok(Module::new(Graph {
            name: self.name,
            values: self.values,
            ops: self.ops,
            live,
            parameters: self.parameters,
            arguments: self.arguments,
            body,
            results,
        }))
    }

    fn live_ops(&self, results: &[Value]) -> Vec<bool> {
        let mut live: Vec<bool> = self.ops.iter().map(|op| op.has_side_effect).collect();
        let mark = |live: &mut Vec<bool>, v: Value| {
            if let Def::Op { op, .. } = self.values[v.index()].def {
                live[op as usize] = true;
            }
        };
        results.iter().for_each(|&v| mark(&mut live, v));
        // Whatever an operation uses has a smaller id, so one backward pass reaches everything.
        for id in (0..self.ops.len()).rev() {
            if live[id] {
                let op = &self.ops[id];
                op.operands.iter().for_each(|&v| mark(&mut live, v));
                op.regions.iter().flat_map(|r| &r.results).for_each(|&v| mark(&mut live, v));
            }
        }
        live
    }

    fn new_value(&mut self, ty: TensorType, def: Def, scope: u32) -> Value {
        self.values.push(ValueInfo { ty, def, scope });
        Value((self.values.len() - 1) as u32)
    }

    fn frame(&mut self) -> &mut Frame {
        let last = self.frames.len() - 1;
        &mut self.frames[last]
    }

    /// The value by which `value` can be used here: itself, or a copy of a constant that an isolated
    /// region would otherwise capture.
    pub(crate) fn visible(&mut self, op: &'static str, value: Value) -> Result<Value> {
        let Some(info) = self.values.get(value.index()) else {
            return Err(Error::UnknownValue { op, value: value.0 });
        };
        let scope = info.scope;
        let mut isolated = false;
        for frame in self.frames.iter().rev() {
            if frame.scope == scope {
                if !isolated {
                    return Ok(value);
                }
                if let Def::Op { op: def, .. } = self.values[value.index()].def
                    && self.ops[def as usize].syntax == Syntax::Constant
                    && let Some((_, Attr::Text(literal))) = self.ops[def as usize].attrs.first()
                {
                    let (ty, literal) = (self.ty(value).clone(), literal.clone());
                    return self.constant_text(ty, literal);
                }
                break;
            }
            isolated |= frame.isolated;
        }
        Err(Error::OutOfScope { op, ty: self.ty(value).clone() })
    }

    pub(crate) fn known(&self, op: &'static str, values: &[Value]) -> Result<()> {
        match values.iter().find(|v| v.index() >= self.values.len()) {
            Some(v) => Err(Error::UnknownValue { op, value: v.0 }),
            None => Ok(()),
        }
    }

    /// Looks in this scope and in those it can see.
    pub(crate) fn reused(&self, key: &ReuseKey) -> Option<Value> {
        for frame in self.frames.iter().rev() {
            if let Some(&v) = frame.reuse.get(key) {
                return Some(v);
            }
            if frame.isolated {
                break;
            }
        }
        None
    }

    pub(crate) fn remember(&mut self, key: ReuseKey, value: Value) {
        self.frame().reuse.insert(key, value);
    }

    pub(crate) fn constant_text(&mut self, ty: TensorType, literal: String) -> Result<Value> {
        // A long table is unlikely to recur and would be stored twice.
        let key = (literal.len() < 4096).then(|| ReuseKey::Constant(ty.clone(), literal.clone()));
        if let Some(v) = key.as_ref().and_then(|key| self.reused(key)) {
            return Ok(v);
        }
        let attrs = vec![("value", Attr::Text(literal))];
        let v = self.push("stablehlo.constant", Syntax::Constant, &[], attrs, Vec::new(), vec![ty])?[0];
        if let Some(key) = key {
            self.remember(key, v);
        }
        Ok(v)
    }

    pub(crate) fn push(
        &mut self,
        name: &'static str,
        syntax: Syntax,
        operands: &[Value],
        attrs: Attrs,
        regions: Vec<Region>,
        types: Vec<TensorType>,
    ) -> Result<SmallVec<[Value; 1]>> {
        let op_name = short(name);
        let operands: Values = operands.iter().map(|&v| self.visible(op_name, v)).collect::<Result<_>>()?;
        for ty in &types {
            check_type(ty)?;
        }
        let id = self.ops.len() as u32;
        let scope = self.frame().scope;
        let results: SmallVec<[Value; 1]> = types
            .into_iter()
            .enumerate()
            .map(|(i, ty)| self.new_value(ty, Def::Op { op: id, result: i as u32 }, scope))
            .collect();
        // An operation that contains an effect is one.
        let has_side_effect =
            regions.iter().flat_map(|r| &r.ops).any(|&op| self.ops[op as usize].has_side_effect);
        let op = Op { name, syntax, operands, results: results.clone(), attrs, regions, has_side_effect };
        self.ops.push(op);
        self.frame().ops.push(id);
        Ok(results)
    }

    /// An operation with one result, no regions, in generic form.
    pub(crate) fn generic(
        &mut self,
        name: &'static str,
        operands: &[Value],
        attrs: Attrs,
        ty: TensorType,
    ) -> Result<Value> {
        Ok(self.push(name, Syntax::Generic, operands, attrs, Vec::new(), vec![ty])?[0])
    }

    /// Builds a region by calling `body` with arguments of the given types.
    pub(crate) fn region(
        &mut self,
        op: &'static str,
        isolated: bool,
        arguments: &[TensorType],
        body: impl FnOnce(&mut Builder, &[Value]) -> Result<Vec<Value>>,
    ) -> Result<Region> {
        let scope = self.next_scope;
        self.next_scope += 1;
        self.frames.push(Frame { scope, isolated, ops: Vec::new(), reuse: HashMap::new() });
        let args: Vec<Value> =
            arguments.iter().map(|ty| self.new_value(ty.clone(), Def::RegionArgument, scope)).collect();
        let results = body(self, &args)
            .and_then(|results| results.into_iter().map(|v| self.visible(op, v)).collect::<Result<Values>>());
        // Leave the region before reporting its error: the caller may go on with the builder.
        let ops = self.frames.pop().map(|f| f.ops).unwrap_or_default();
        Ok(Region { args, ops, results: results?, isolated })
    }

    pub(crate) fn types(&self, values: &[Value]) -> OperandTypes {
        OperandTypes(values.iter().filter_map(|v| self.values.get(v.index())).map(|i| i.ty.clone()).collect())
    }

    pub(crate) fn shape_error(&self, op: &'static str, operands: &[Value], rule: impl Into<String>) -> Error {
        Error::Shape { op, operands: self.types(operands), rule: rule.into() }
    }

    pub(crate) fn attribute_error(
        &self,
        op: &'static str,
        operands: &[Value],
        attribute: &'static str,
        rule: impl Into<String>,
    ) -> Error {
        Error::Attribute { op, operands: self.types(operands), attribute, rule: rule.into() }
    }

    /// Refuses operand `v` unless `allowed` holds for its element type.
    pub(crate) fn require_elem(
        &self,
        op: &'static str,
        operands: &[Value],
        v: Value,
        expected: &'static str,
        allowed: impl Fn(ElementType) -> bool,
    ) -> Result<()> {
        let elem = self.elem(v);
        match allowed(elem) {
            true => Ok(()),
            false => Err(Error::ElementType { op, operands: self.types(operands), elem, expected }),
        }
    }

    /// Every entry of `dims` names a dimension of a tensor of rank `rank`, and none is repeated.
    pub(crate) fn require_dims(
        &self,
        op: &'static str,
        operands: &[Value],
        attribute: &'static str,
        dims: &[i64],
        rank: usize,
    ) -> Result<()> {
        for (i, &dim) in dims.iter().enumerate() {
            if dim < 0 || dim >= rank as i64 {
                return Err(Error::Dimension { op, operands: self.types(operands), attribute, dim, rank });
            }
            if dims[..i].contains(&dim) {
                return Err(self.attribute_error(
                    op,
                    operands,
                    attribute,
                    format!("dimension {dim} is repeated in {dims:?}"),
                ));
            }
        }
        Ok(())
    }

    pub(crate) fn require_len(
        &self,
        op: &'static str,
        operands: &[Value],
        attribute: &'static str,
        len: usize,
        expected: usize,
    ) -> Result<()> {
        match len == expected {
            true => Ok(()),
            false => Err(self.attribute_error(
                op,
                operands,
                attribute,
                format!("has {len} entries, expected {expected}"),
            )),
        }
    }

    /// Marks the operation added last as one that dead code elimination keeps.
    pub(crate) fn keep_last(&mut self) {
        if let Some(op) = self.ops.last_mut() {
            op.has_side_effect = true;
        }
    }
}

/// The operation name without its dialect, as errors print it.
pub(crate) fn short(name: &'static str) -> &'static str {
    name.split_once('.').map_or(name, |(_, op)| op)
}

fn check_type(ty: &TensorType) -> Result<()> {
    if ty.dims.iter().any(|&d| d < 0) {
        return Err(Error::Type { ty: ty.clone(), rule: "dimensions must not be negative" });
    }
    match ty.element_count() {
        Some(_) => Ok(()),
        None => Err(Error::Type { ty: ty.clone(), rule: "the element count exceeds 64 bits" }),
    }
}
