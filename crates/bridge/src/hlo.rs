//! Reading of optimised modules. Field numbers are those of `xla/service/hlo.proto` and `xla/xla_data.proto`; only what
//! a listing needs is declared, for modules of newer compilers have more than older readers know.

use std::collections::HashMap;
use std::fmt::Write as _;

use prost::Message;

/// One instruction of an optimised module.
pub struct Instruction {
    pub computation: String,
    pub name: String,
    pub opcode: String,
    /// With its layout, as HLO text writes it: `f32[8,128]{1,0:T(8,128)S(1)}`.
    pub shape: String,
    pub operands: Vec<String>,
    /// Of a transpose: its permutation; of a reduction or broadcast: the dimensions.
    pub dimensions: Vec<i64>,
    /// Computations that it calls: a fusion's, a loop's.
    pub calls: Vec<String>,
}

/// Every instruction of a module, computation by computation.
pub fn instructions(code: &[u8]) -> Result<Vec<Instruction>, prost::DecodeError> {
    let module = proto::ModuleWithConfig::decode(code)?.module.unwrap_or_default();
    let computation_names: HashMap<i64, String> =
        module.computations.iter().map(|computation| (computation.id, computation.name.clone())).collect();
    let mut listed = Vec::new();
    for computation in module.computations {
        let names: HashMap<i64, String> =
            computation.instructions.iter().map(|i| (i.id, i.name.clone())).collect();
        for instruction in computation.instructions {
            listed.push(Instruction {
                computation: computation.name.clone(),
                shape: instruction.shape.as_ref().map(shape_text).unwrap_or_default(),
                operands: named(&instruction.operands, &names),
                calls: named(&instruction.called_computations, &computation_names),
                dimensions: instruction.dimensions,
                name: instruction.name,
                opcode: instruction.opcode,
            });
        }
    }
    Ok(listed)
}

fn named(ids: &[i64], names: &HashMap<i64, String>) -> Vec<String> {
    ids.iter().filter_map(|id| names.get(id).cloned()).collect()
}

fn shape_text(shape: &proto::Shape) -> String {
    const TUPLE: i32 = 13;
    if shape.element_type == TUPLE {
        return format!("({})", comma_separated(shape.tuple.iter().map(shape_text)));
    }
    let mut text = format!("{}[{}]", element_name(shape.element_type), comma_separated(&shape.dimensions));
    let Some(layout) = &shape.layout else { return text };
    let mut notes = String::new();
    if !layout.tiles.is_empty() {
        notes.push('T');
        for tile in &layout.tiles {
            let _ = write!(notes, "({})", comma_separated(&tile.dimensions));
        }
    }
    if layout.memory_space != 0 {
        let _ = write!(notes, "S({})", layout.memory_space);
    }
    let _ = write!(text, "{{{}", comma_separated(&layout.minor_to_major));
    if !notes.is_empty() {
        let _ = write!(text, ":{notes}");
    }
    text.push('}');
    text
}

fn comma_separated(items: impl IntoIterator<Item = impl ToString>) -> String {
    items.into_iter().map(|item| item.to_string()).collect::<Vec<_>>().join(",")
}

fn element_name(element: i32) -> &'static str {
    // `xla.PrimitiveType`
    match element {
        1 => "pred",
        2 => "s8",
        3 => "s16",
        4 => "s32",
        5 => "s64",
        6 => "u8",
        7 => "u16",
        8 => "u32",
        9 => "u64",
        10 => "f16",
        11 => "f32",
        12 => "f64",
        15 => "c64",
        16 => "bf16",
        17 => "token",
        18 => "c128",
        19 => "f8e5m2",
        20 => "f8e4m3fn",
        _ => "other",
    }
}

mod proto {
    #[derive(Clone, PartialEq, prost::Message)]
    pub struct ModuleWithConfig {
        #[prost(message, optional, tag = "1")]
        pub module: Option<Module>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub struct Module {
        #[prost(message, repeated, tag = "3")]
        pub computations: Vec<Computation>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub struct Computation {
        #[prost(string, tag = "1")]
        pub name: String,
        #[prost(message, repeated, tag = "2")]
        pub instructions: Vec<Instruction>,
        #[prost(int64, tag = "5")]
        pub id: i64,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub struct Instruction {
        #[prost(string, tag = "1")]
        pub name: String,
        #[prost(string, tag = "2")]
        pub opcode: String,
        #[prost(message, optional, tag = "3")]
        pub shape: Option<Shape>,
        #[prost(int64, repeated, tag = "14")]
        pub dimensions: Vec<i64>,
        #[prost(int64, tag = "35")]
        pub id: i64,
        #[prost(int64, repeated, tag = "36")]
        pub operands: Vec<i64>,
        #[prost(int64, repeated, tag = "38")]
        pub called_computations: Vec<i64>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub struct Shape {
        #[prost(int32, tag = "2")]
        pub element_type: i32,
        #[prost(int64, repeated, tag = "3")]
        pub dimensions: Vec<i64>,
        #[prost(message, repeated, tag = "4")]
        pub tuple: Vec<Shape>,
        #[prost(message, optional, tag = "5")]
        pub layout: Option<Layout>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub struct Layout {
        #[prost(int64, repeated, tag = "1")]
        pub minor_to_major: Vec<i64>,
        #[prost(message, repeated, tag = "6")]
        pub tiles: Vec<Tile>,
        #[prost(int64, tag = "8")]
        pub memory_space: i64,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub struct Tile {
        #[prost(int64, repeated, tag = "1")]
        pub dimensions: Vec<i64>,
    }
}
