use crate::ir::{Region, Syntax};
use crate::{Builder, ElementType, Result, TensorType, Value};

/// The body of one branch of [`Builder::case`].
pub type Branch<'a> = Box<dyn FnOnce(&mut Builder) -> Result<Vec<Value>> + 'a>;

impl Builder {
    /// Repeats `body` while `cond` holds, starting from `inits`. Both get the loop variables; `body`
    /// returns their next values, of the same types. Both may use values from outside.
    pub fn while_loop(
        &mut self,
        inits: &[Value],
        cond: impl FnOnce(&mut Builder, &[Value]) -> Result<Value>,
        body: impl FnOnce(&mut Builder, &[Value]) -> Result<Vec<Value>>,
    ) -> Result<Vec<Value>> {
        const OP: &str = "while";
        self.known(OP, inits)?;
        let types: Vec<TensorType> = inits.iter().map(|&v| self.ty(v).clone()).collect();
        let cond = self.region(OP, false, &types, |b, args| Ok(vec![cond(b, args)?]))?;
        self.require_region(OP, inits, "cond", &cond, &[TensorType::scalar(ElementType::Pred)])?;
        let body = self.region(OP, false, &types, body)?;
        self.require_region(OP, inits, "body", &body, &types)?;
        let regions = vec![cond, body];
        Ok(self.push("stablehlo.while", Syntax::Generic, inits, Vec::new(), regions, types)?.to_vec())
    }

    /// Runs one of two branches, which return values of the same types and may use values from outside.
    pub fn if_else(
        &mut self,
        pred: Value,
        on_true: impl FnOnce(&mut Builder) -> Result<Vec<Value>>,
        on_false: impl FnOnce(&mut Builder) -> Result<Vec<Value>>,
    ) -> Result<Vec<Value>> {
        const OP: &str = "if";
        self.known(OP, &[pred])?;
        if *self.ty(pred) != TensorType::scalar(ElementType::Pred) {
            return Err(self.shape_error(OP, &[pred], "the predicate must be a boolean scalar"));
        }
        let on_true = self.region(OP, false, &[], |b, _| on_true(b))?;
        let on_false = self.region(OP, false, &[], |b, _| on_false(b))?;
        self.branches("stablehlo.if", pred, vec![on_true, on_false])
    }

    /// Runs branch `index`, or the last one if there is no such branch.
    pub fn case(&mut self, index: Value, branches: Vec<Branch<'_>>) -> Result<Vec<Value>> {
        const OP: &str = "case";
        self.known(OP, &[index])?;
        if *self.ty(index) != TensorType::scalar(ElementType::S32) {
            return Err(self.shape_error(OP, &[index], "the index must be an i32 scalar"));
        }
        if branches.is_empty() {
            return Err(self.shape_error(OP, &[index], "there must be a branch"));
        }
        let regions = branches
            .into_iter()
            .map(|branch| self.region(OP, false, &[], |b, _| branch(b)))
            .collect::<Result<Vec<Region>>>()?;
        self.branches("stablehlo.case", index, regions)
    }

    fn branches(&mut self, name: &'static str, operand: Value, regions: Vec<Region>) -> Result<Vec<Value>> {
        let op = crate::builder::short(name);
        let types = self.types(&regions[0].results).0;
        for region in &regions[1..] {
            self.require_region(op, &[operand], "branch", region, &types)?;
        }
        Ok(self.push(name, Syntax::Generic, &[operand], Vec::new(), regions, types)?.to_vec())
    }
}
