//! Prints a graph once, into one `String`.

use crate::ir::{ArgumentAttr, Attr, Def, Graph, Op, Region, Syntax, Value};
use std::fmt::Write;

pub(crate) fn print(graph: &Graph) -> String {
    let mut out = String::with_capacity(256 + 96 * graph.ops.len());
    // Formatting into a String cannot fail.
    let _ = Printer { graph, names: vec![u32::MAX; graph.values.len()], next: 0, out: &mut out }.module();
    out
}

struct Printer<'a> {
    graph: &'a Graph,
    /// Number of each value; the results of one operation share it.
    names: Vec<u32>,
    next: u32,
    out: &'a mut String,
}

impl Printer<'_> {
    fn module(&mut self) -> std::fmt::Result {
        let graph = self.graph;
        self.out.push_str("module @");
        symbol(self.out, &graph.name);
        self.out.push_str(" {\n  func.func public @main(");
        for (i, &p) in graph.parameters.iter().enumerate() {
            write!(self.out, "{}%arg{i}: {}", comma(i), graph.values[p.index()].ty)?;
            match graph.arguments[i] {
                ArgumentAttr::None => {}
                ArgumentAttr::Alias(result) => write!(self.out, " {{tf.aliasing_output = {result} : i32}}")?,
                ArgumentAttr::Donor => self.out.push_str(" {jax.buffer_donor = true}"),
            }
        }
        self.out.push_str(") -> (");
        self.types(&graph.results)?;
        self.out.push_str(") {\n");
        self.ops(&graph.body, 4)?;
        self.terminator("func.return", &graph.results, 4)?;
        self.out.push_str("  }\n}\n");
        Ok(())
    }

    fn ops(&mut self, ids: &[u32], indent: usize) -> std::fmt::Result {
        let graph = self.graph;
        for &id in ids {
            if graph.live[id as usize] {
                self.op(&graph.ops[id as usize], indent)?;
            }
        }
        Ok(())
    }

    fn op(&mut self, op: &Op, indent: usize) -> std::fmt::Result {
        self.indent(indent);
        if !op.results.is_empty() {
            let number = self.number();
            op.results.iter().for_each(|r| self.names[r.index()] = number);
            match op.results.len() {
                1 => write!(self.out, "%{number} = ")?,
                n => write!(self.out, "%{number}:{n} = ")?,
            }
        }
        match op.syntax {
            Syntax::SameType => {
                self.out.push_str(op.name);
                self.out.push(' ');
                self.values(&op.operands)?;
                self.out.push_str(" : ");
                self.types(&op.results)?;
            }
            Syntax::Constant => {
                self.out.push_str("stablehlo.constant ");
                if let Some((_, attr)) = op.attrs.first() {
                    self.attr(attr)?;
                }
                self.out.push_str(" : ");
                self.types(&op.results)?;
            }
            Syntax::Generic => self.generic(op, indent)?,
        }
        self.out.push('\n');
        Ok(())
    }

    fn generic(&mut self, op: &Op, indent: usize) -> std::fmt::Result {
        write!(self.out, "\"{}\"(", op.name)?;
        self.values(&op.operands)?;
        self.out.push(')');
        if !op.regions.is_empty() {
            self.out.push_str(" (");
            for (i, region) in op.regions.iter().enumerate() {
                self.out.push_str(comma(i));
                self.region(region, indent)?;
            }
            self.out.push(')');
        }
        for (i, (name, attr)) in op.attrs.iter().enumerate() {
            write!(self.out, "{}{name} = ", if i == 0 { " {" } else { ", " })?;
            self.attr(attr)?;
        }
        if !op.attrs.is_empty() {
            self.out.push('}');
        }
        self.out.push_str(" : (");
        self.types(&op.operands)?;
        self.out.push_str(") -> ");
        match op.results.len() {
            1 => self.types(&op.results),
            _ => {
                self.out.push('(');
                self.types(&op.results)?;
                self.out.push(')');
                Ok(())
            }
        }
    }

    fn region(&mut self, region: &Region, indent: usize) -> std::fmt::Result {
        self.out.push_str("{\n");
        if !region.args.is_empty() {
            self.indent(indent);
            self.out.push_str("^bb0(");
            for (i, &arg) in region.args.iter().enumerate() {
                let number = self.number();
                self.names[arg.index()] = number;
                write!(self.out, "{}%{number}: {}", comma(i), self.graph.values[arg.index()].ty)?;
            }
            self.out.push_str("):\n");
        }
        self.ops(&region.ops, indent + 2)?;
        self.terminator("stablehlo.return", &region.results, indent + 2)?;
        self.indent(indent);
        self.out.push('}');
        Ok(())
    }

    fn terminator(&mut self, name: &str, values: &[Value], indent: usize) -> std::fmt::Result {
        self.indent(indent);
        self.out.push_str(name);
        if !values.is_empty() {
            self.out.push(' ');
            self.values(values)?;
            self.out.push_str(" : ");
            self.types(values)?;
        }
        self.out.push('\n');
        Ok(())
    }

    fn values(&mut self, values: &[Value]) -> std::fmt::Result {
        for (i, v) in values.iter().enumerate() {
            self.out.push_str(comma(i));
            let number = self.names[v.index()];
            match self.graph.values[v.index()].def {
                Def::Parameter(index) => write!(self.out, "%arg{index}")?,
                Def::Op { op, result } if self.graph.ops[op as usize].results.len() > 1 => {
                    write!(self.out, "%{number}#{result}")?;
                }
                _ => write!(self.out, "%{number}")?,
            }
        }
        Ok(())
    }

    fn types(&mut self, values: &[Value]) -> std::fmt::Result {
        for (i, v) in values.iter().enumerate() {
            write!(self.out, "{}{}", comma(i), self.graph.values[v.index()].ty)?;
        }
        Ok(())
    }

    fn attr(&mut self, attr: &Attr) -> std::fmt::Result {
        match attr {
            Attr::Bool(b) => write!(self.out, "{b}"),
            Attr::I32(n) => write!(self.out, "{n} : i32"),
            Attr::I64(n) => write!(self.out, "{n} : i64"),
            Attr::I64Array(items) => array(self.out, "i64", items),
            Attr::BoolArray(items) => array(self.out, "i1", items),
            Attr::Pairs(pairs) if pairs.is_empty() => {
                self.out.push_str("dense<> : tensor<0x2xi64>");
                Ok(())
            }
            Attr::Pairs(pairs) => {
                self.out.push_str("dense<[");
                for (i, (a, b)) in pairs.iter().enumerate() {
                    write!(self.out, "{}[{a}, {b}]", comma(i))?;
                }
                write!(self.out, "]> : tensor<{}x2xi64>", pairs.len())
            }
            Attr::Text(text) => {
                self.out.push_str(text);
                Ok(())
            }
            Attr::Enum(kind, value) => write!(self.out, "#stablehlo<{kind} {value}>"),
        }
    }

    fn number(&mut self) -> u32 {
        self.next += 1;
        self.next - 1
    }

    fn indent(&mut self, n: usize) {
        self.out.extend(std::iter::repeat_n(' ', n));
    }
}

fn comma(i: usize) -> &'static str {
    if i == 0 { "" } else { ", " }
}

fn array<T: std::fmt::Display>(out: &mut String, elem: &str, items: &[T]) -> std::fmt::Result {
    write!(out, "array<{elem}")?;
    for (i, item) in items.iter().enumerate() {
        write!(out, "{}{item}", if i == 0 { ": " } else { ", " })?;
    }
    out.push('>');
    Ok(())
}

/// A symbol name, quoted unless it is a bare MLIR identifier.
fn symbol(out: &mut String, name: &str) {
    let bare = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && name.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '$' | '.'));
    if bare { out.push_str(name) } else { quoted(out, name) }
}

/// A string literal; everything but printable ASCII is written as `\XX`.
pub(crate) fn quoted(out: &mut String, text: &str) {
    out.push('"');
    for byte in text.bytes() {
        match byte {
            b'"' | b'\\' => {
                let _ = write!(out, "\\{}", byte as char);
            }
            0x20..0x7f => out.push(byte as char),
            _ => {
                let _ = write!(out, "\\{byte:02X}");
            }
        }
    }
    out.push('"');
}
