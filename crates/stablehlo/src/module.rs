use crate::TensorType;
use crate::ir::Graph;
use crate::printer;

/// A finished module: its text and the types of its parameters and results.
#[derive(Clone, Debug)]
pub struct Module {
    pub(crate) graph: Graph,
    text: String,
    parameters: Vec<TensorType>,
    results: Vec<TensorType>,
}

impl Module {
    pub(crate) fn new(graph: Graph) -> Self {
        let types = |vs: &[crate::Value]| vs.iter().map(|v| graph.values[v.index()].ty.clone()).collect();
        let (parameters, results) = (types(&graph.parameters), types(&graph.results));
        let text = printer::print(&graph);
        Module { graph, text, parameters, results }
    }

    /// MLIR text. It is a function of the calls that built the module, so its hash can key a cache.
    pub fn text(&self) -> &str {
        &self.text
    }

    pub fn into_text(self) -> String {
        self.text
    }

    pub fn parameters(&self) -> &[TensorType] {
        &self.parameters
    }

    pub fn results(&self) -> &[TensorType] {
        &self.results
    }

    /// Number of operations that the text contains, those inside regions included.
    pub fn op_count(&self) -> usize {
        self.graph.live.iter().filter(|&&live| live).count()
    }
}
