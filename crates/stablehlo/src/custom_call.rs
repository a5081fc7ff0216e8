use crate::ir::{Attr, Syntax};
use crate::printer::quoted;
use crate::{ApiVersion, Builder, Result, TensorType, Value};

/// `backend_config` of a custom call.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub enum BackendConfig {
    #[default]
    None,
    /// An opaque string, for API versions 1 to 3.
    Opaque(String),
    /// Attributes of a typed FFI call: names and MLIR attribute text, such as `("axis", "1 : i64")`.
    Dict(Vec<(String, String)>),
}

impl Builder {
    /// Calls a target that is registered with the plugin. With `has_side_effect` the call is kept even
    /// if nothing uses its results.
    pub fn custom_call(
        &mut self,
        target: &str,
        operands: &[Value],
        results: &[TensorType],
        api_version: ApiVersion,
        config: &BackendConfig,
        has_side_effect: bool,
    ) -> Result<Vec<Value>> {
        const OP: &str = "custom_call";
        self.known(OP, operands)?;
        let typed = api_version == ApiVersion::TypedFfi;
        let config = match config {
            BackendConfig::None => String::from(if typed { "{}" } else { "\"\"" }),
            BackendConfig::Opaque(text) if !typed => literal(text),
            BackendConfig::Dict(entries) if typed => {
                let entries: Vec<String> =
                    entries.iter().map(|(name, attr)| format!("{} = {attr}", literal(name))).collect();
                format!("{{{}}}", entries.join(", "))
            }
            _ => {
                let rule = "a typed FFI call takes a dictionary, any other call an opaque string";
                return Err(self.attribute_error(OP, operands, "backend_config", rule));
            }
        };
        let attrs = vec![
            ("call_target_name", Attr::Text(literal(target))),
            ("has_side_effect", Attr::Bool(has_side_effect)),
            ("backend_config", Attr::Text(config)),
            ("api_version", Attr::I32(api_version.number())),
        ];
        let types = results.to_vec();
        let values =
            self.push("stablehlo.custom_call", Syntax::Generic, operands, attrs, Vec::new(), types)?;
        if has_side_effect {
            self.keep_last();
        }
        Ok(values.to_vec())
    }

    /// The operands, which the compiler may not move computations across.
    pub fn optimization_barrier(&mut self, operands: &[Value]) -> Result<Vec<Value>> {
        self.known("optimization_barrier", operands)?;
        if operands.is_empty() {
            return Ok(Vec::new());
        }
        let types = self.types(operands).0;
        let name = "stablehlo.optimization_barrier";
        Ok(self.push(name, Syntax::Generic, operands, Vec::new(), Vec::new(), types)?.to_vec())
    }
}

fn literal(text: &str) -> String {
    let mut out = String::new();
    quoted(&mut out, text);
    out
}
