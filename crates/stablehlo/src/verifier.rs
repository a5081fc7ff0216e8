//! Checks a finished module independently of the builder's own checks; for tests.

use crate::Module;
use crate::ir::{Def, Graph, Op, Region, Syntax, Value};

#[derive(thiserror::Error, Debug, PartialEq, Eq)]
#[error("operation {op} (number {id}): {rule}")]
pub struct VerifyError {
    pub op: &'static str,
    pub id: usize,
    pub rule: String,
}

/// Values are defined before they are used and inside what encloses the use, isolated regions use
/// nothing from outside, and terminators and same-type operations have the types they must have.
pub fn verify(module: &Module) -> Result<(), VerifyError> {
    let graph = &module.graph;
    let mut verifier = Verifier { graph, defined: vec![false; graph.values.len()] };
    graph.parameters.iter().for_each(|v| verifier.defined[v.index()] = true);
    verifier.block(&graph.body)?;
    for v in &graph.results {
        if !verifier.defined[v.index()] {
            let rule = format!("returns undefined value #{}", v.0);
            return Err(VerifyError { op: "return", id: graph.ops.len(), rule });
        }
    }
    Ok(())
}

struct Verifier<'a> {
    graph: &'a Graph,
    defined: Vec<bool>,
}

impl Verifier<'_> {
    fn block(&mut self, ids: &[u32]) -> Result<(), VerifyError> {
        let graph = self.graph;
        for &id in ids.iter().filter(|&&id| graph.live[id as usize]) {
            let op = &graph.ops[id as usize];
            let fail = |rule: String| Err(VerifyError { op: op.name, id: id as usize, rule });
            if let Some(v) = op.operands.iter().find(|v| !self.defined[v.index()]) {
                return fail(format!("uses undefined value #{}", v.0));
            }
            for region in &op.regions {
                self.region(op, id as usize, region)?;
            }
            let ty = |v: &Value| &graph.values[v.index()].ty;
            if op.syntax == Syntax::SameType
                && let Some(v) = op.operands.iter().find(|v| ty(v) != ty(&op.results[0]))
            {
                return fail(format!("operand type {} is not the result type {}", ty(v), ty(&op.results[0])));
            }
            for (i, r) in op.results.iter().enumerate() {
                if graph.values[r.index()].def != (Def::Op { op: id, result: i as u32 }) {
                    return fail(format!("result #{} has another definition", r.0));
                }
                self.defined[r.index()] = true;
            }
        }
        Ok(())
    }

    fn region(&mut self, op: &Op, id: usize, region: &Region) -> Result<(), VerifyError> {
        let outside = self.defined.clone();
        if region.isolated {
            self.defined.fill(false);
        }
        region.args.iter().for_each(|v| self.defined[v.index()] = true);
        self.block(&region.ops)?;
        if let Some(v) = region.results.iter().find(|v| !self.defined[v.index()]) {
            let rule = format!("a region returns undefined value #{}", v.0);
            return Err(VerifyError { op: op.name, id, rule });
        }
        self.defined = outside;
        let types =
            |vs: &[Value]| -> Vec<_> { vs.iter().map(|v| &self.graph.values[v.index()].ty).collect() };
        // Conditions and comparators return a predicate; every other region returns what its
        // operation yields, as scalars if the operation folds.
        let returned = types(&region.results);
        let condition = returned.len() == 1 && returned[0].dims.is_empty() && returned[0].elem.is_pred();
        let yields = types(&op.results);
        let folds = region.isolated;
        let same = returned.len() == yields.len()
            && returned
                .iter()
                .zip(&yields)
                .all(|(r, y)| r.elem == y.elem && if folds { r.dims.is_empty() } else { r.dims == y.dims });
        if condition || same {
            return Ok(());
        }
        let rule = "a region returns other types than its operation".to_string();
        Err(VerifyError { op: op.name, id, rule })
    }
}
