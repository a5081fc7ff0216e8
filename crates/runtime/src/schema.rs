//! What PyTorch's schemas say of operators: which arguments are written, what is returned, and the functional form.
//!
//! `aten::add_.Tensor(Tensor(a!) self, Tensor other, *, Scalar alpha=1) -> Tensor(a!)`

use rustc_hash::FxHashMap;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Schema {
    /// With its overload: `aten::add_.Tensor`.
    pub name: String,
    pub arguments: Vec<Argument>,
    pub returns: Vec<Type>,
    /// Whether PyTorch has the sizes of such an operator, or of its form with `out=`, apart from the kernels.
    pub is_structured: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Argument {
    pub name: String,
    pub ty: Type,
    /// Written and passed by keyword alone.
    pub is_out: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Type {
    /// Without alias annotation and length: `Tensor`, `int[]`, `Scalar?`.
    pub name: String,
    /// The annotation of what is written, `a!`: a written argument and the return that is this argument share it.
    pub written: Option<String>,
}

impl Schema {
    /// `None` when `text` is no schema.
    pub fn parse(text: &str) -> Option<Schema> {
        let (name, rest) = text.split_once('(')?;
        let end = closing(rest)?;
        let returns = rest[end + 1..].trim_start().strip_prefix("->")?.trim();
        let returns = match returns.strip_prefix('(') {
            Some(several) => items(&several[..closing(several)?]),
            None => items(returns),
        };
        let mut keyword_only = false;
        let mut arguments = Vec::new();
        for item in items(&rest[..end]) {
            if item == "*" {
                keyword_only = true;
                continue;
            }
            let (ty, name) = item.split_at(end_of_type(item));
            let ty = Type::parse(ty);
            let name = name.trim_start().split('=').next()?.to_owned();
            arguments.push(Argument { name, is_out: keyword_only && ty.written.is_some(), ty });
        }
        let returns = returns.into_iter().map(|item| Type::parse(&item[..end_of_type(item)])).collect();
        Some(Schema { name: name.to_owned(), arguments, returns, is_structured: false })
    }

    pub fn is_mutable(&self) -> bool {
        self.arguments.iter().any(|argument| argument.ty.written.is_some())
    }

    /// The written argument that is return `index`.
    pub fn returned_argument(&self, index: usize) -> Option<usize> {
        let written = self.returns[index].written.as_ref()?;
        self.arguments.iter().position(|argument| argument.ty.written.as_ref() == Some(written))
    }

    /// How well `functional` fits as this operator's functional form: the same types once `out=` arguments are left out
    /// (1), and the same names (2).
    fn match_functional(&self, functional: &Schema) -> Option<usize> {
        let mine = || self.arguments.iter().filter(|argument| !argument.is_out);
        let same_types = mine().count() == functional.arguments.len()
            && mine().zip(&functional.arguments).all(|(mine, other)| mine.ty.name == other.ty.name);
        let same_names = mine().zip(&functional.arguments).all(|(mine, other)| mine.name == other.name);
        (same_types && !functional.is_mutable()).then_some(1 + usize::from(same_names))
    }
}

impl Type {
    fn parse(text: &str) -> Type {
        let mut ty = Type { name: String::new(), written: None };
        let mut rest = text;
        while let Some(at) = rest.find(['(', '[']) {
            let (before, after) = rest.split_at(at);
            let length = closing(&after[1..]).map_or(after.len(), |end| end + 2);
            let annotation = &after[1..length - 1];
            ty.name.push_str(before);
            if after.starts_with('[') {
                ty.name.push_str("[]");
            } else if ty.name.is_empty() {
                ty.name.push_str(&after[..length]); // a tuple
            } else if annotation.contains('!') {
                ty.written = annotation.split(" ->").next().map(str::to_owned);
            }
            rest = &after[length..];
        }
        ty.name.push_str(rest);
        ty
    }

    pub fn is_list(&self) -> bool {
        self.name.ends_with("[]")
    }

    /// `Scalar`, `Scalar?`, `Scalar[]`
    pub fn is_scalar(&self) -> bool {
        self.name.trim_end_matches(['?', '[', ']']) == "Scalar"
    }
}

/// The characters outside quotes, with their places and how many parentheses and brackets are open before them.
fn unquoted(text: &str) -> impl Iterator<Item = (usize, char, i32)> {
    let (mut depth, mut quoted) = (0, false);
    text.char_indices().filter_map(move |(at, c)| {
        let before = depth;
        match c {
            '"' => quoted = !quoted,
            '(' | '[' if !quoted => depth += 1,
            ')' | ']' if !quoted => depth -= 1,
            _ => {}
        }
        (!quoted && c != '"').then_some((at, c, before))
    })
}

/// Where the parenthesis or bracket ends that stands open before `text`.
fn closing(text: &str) -> Option<usize> {
    unquoted(text).find(|&(_, c, depth)| depth == 0 && matches!(c, ')' | ']')).map(|(at, ..)| at)
}

/// A type has no space outside parentheses.
fn end_of_type(item: &str) -> usize {
    unquoted(item).find(|&(_, c, depth)| depth == 0 && c == ' ').map_or(item.len(), |(at, ..)| at)
}

/// The parts between the commas that stand outside parentheses, brackets and quotes.
fn items(text: &str) -> Vec<&str> {
    let mut start = 0;
    let mut items = Vec::new();
    for (at, ..) in unquoted(text).filter(|&(_, c, depth)| depth == 0 && c == ',') {
        items.push(text[start..at].trim());
        start = at + 1;
    }
    items.push(text[start..].trim());
    items.retain(|item| !item.is_empty());
    items
}

/// The schemas that the front end has declared.
#[derive(Debug, Default)]
pub struct Schemas {
    by_name: FxHashMap<String, Schema>,
    /// Overloads of `aten::add`, in the order of their declaration.
    by_base: FxHashMap<String, Vec<String>>,
}

impl Schemas {
    pub fn declare(&mut self, schema: Schema) {
        if !self.by_name.contains_key(&schema.name) {
            self.by_base.entry(base(&schema.name).to_owned()).or_default().push(schema.name.clone());
            self.by_name.insert(schema.name.clone(), schema);
        }
    }

    pub fn forget(&mut self, namespace: &str) {
        self.by_name.retain(|name, _| !is_in(namespace, name));
        self.by_base.retain(|name, _| !is_in(namespace, name));
    }

    pub fn get(&self, name: &str) -> Option<&Schema> {
        self.by_name.get(name)
    }

    pub fn iter(&self) -> impl Iterator<Item = &Schema> {
        self.by_name.values()
    }

    /// The operator that computes what a mutable one writes: `foo_` -> `foo`, `foo.out` -> `foo`, `foo` ->
    /// `foo_functional`. Overloads match by the types of their arguments: their names follow no rule (`normal_` ->
    /// `normal_functional`, `bernoulli_.float` -> `bernoulli.p`).
    pub fn functional_form(&self, schema: &Schema) -> Option<&Schema> {
        let base = functional_base(base(&schema.name));
        let best = |name: &str| {
            let overloads = self.by_base.get(name)?.iter().filter_map(|name| self.get(name));
            let matching = overloads.filter_map(|other| Some((schema.match_functional(other)?, other)));
            matching.rev().max_by_key(|(quality, _)| *quality).map(|(_, other)| other)
        };
        best(&base).or_else(|| best(&format!("{base}_functional")))
    }
}

/// Whether `name` is `namespace::...`.
pub fn is_in(namespace: &str, name: &str) -> bool {
    name.strip_prefix(namespace).is_some_and(|rest| rest.starts_with("::"))
}

/// The name without its overload.
pub fn base(name: &str) -> &str {
    name.split_once('.').map_or(name, |(base, _)| base)
}

/// `aten::add` for `aten::add_`, `aten::__and__` for `aten::__iand__`.
fn functional_base(base: &str) -> String {
    if base.contains("::__i") {
        return base.replacen("::__i", "::__", 1);
    }
    match base.strip_suffix('_') {
        Some(stem) if !stem.ends_with('_') => stem.to_owned(),
        _ => base.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Schema {
        Schema::parse(text).unwrap()
    }

    #[test]
    fn reads_types_names_and_what_is_written() {
        let schema =
            parse("aten::add_.Tensor(Tensor(a!) self, Tensor other, *, Scalar alpha=1) -> Tensor(a!)");
        assert_eq!(schema.name, "aten::add_.Tensor");
        let names: Vec<_> = schema.arguments.iter().map(|a| (a.ty.name.as_str(), a.name.as_str())).collect();
        assert_eq!(names, [("Tensor", "self"), ("Tensor", "other"), ("Scalar", "alpha")]);
        assert!(schema.is_mutable() && schema.arguments[2].ty.is_scalar() && !schema.arguments[0].is_out);
        assert_eq!(schema.returned_argument(0), Some(0));
    }

    #[test]
    fn reads_defaults_lists_and_several_returns() {
        let schema = parse(
            "aten::f(Tensor(a!)[] self, Tensor?[] i, int[2] k=[1, 2], SymInt[1]? d=None, str m=\"a,(b\", *, \
             Tensor(b!) out) -> (Tensor values, Tensor(b!) indices, Tensor[] rest)",
        );
        let types: Vec<_> = schema.arguments.iter().map(|a| a.ty.name.as_str()).collect();
        assert_eq!(types, ["Tensor[]", "Tensor?[]", "int[]", "SymInt[]?", "str", "Tensor"]);
        assert_eq!(schema.arguments[2].name, "k");
        assert!(schema.arguments[5].is_out && schema.arguments[0].ty.written.is_some());
        assert_eq!([0, 1, 2].map(|k| schema.returned_argument(k)), [None, Some(5), None]);
        assert!(schema.returns[2].is_list() && !schema.returns[0].is_list());
        assert_eq!(parse("aten::g(Tensor(a -> *) self) -> ()").returns, []);
        assert_eq!(Schema::parse("aten::g"), None);
    }

    #[test]
    fn finds_functional_forms() {
        let mut schemas = Schemas::default();
        for text in [
            "aten::add.Tensor(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor",
            "aten::add.Scalar(Tensor self, Scalar other, Scalar alpha=1) -> Tensor",
            "aten::add_.Tensor(Tensor(a!) self, Tensor other, *, Scalar alpha=1) -> Tensor(a!)",
            "aten::add.out(Tensor self, Tensor other, *, Scalar alpha=1, Tensor(a!) out) -> Tensor(a!)",
            "aten::bernoulli.p(Tensor self, float p, *, Generator? generator=None) -> Tensor",
            "aten::bernoulli_.float(Tensor(a!) self, float p=0.5, *, Generator? generator=None) -> Tensor(a!)",
            "aten::normal_functional(Tensor self, float mean=0, float std=1) -> Tensor",
            "aten::normal_(Tensor(a!) self, float mean=0, float std=1) -> Tensor(a!)",
            "aten::__and__.Tensor(Tensor self, Tensor other) -> Tensor",
            "aten::__iand__.Tensor(Tensor(a!) self, Tensor other) -> Tensor(a!)",
            "aten::pow.a(Tensor self, Tensor x) -> Tensor",
            "aten::pow.b(Tensor self, Tensor y) -> Tensor",
            "aten::pow_(Tensor(a!) self, Tensor y) -> Tensor(a!)",
            "aten::resize_(Tensor(a!) self, SymInt[] size) -> Tensor(a!)",
        ] {
            schemas.declare(parse(text));
        }
        let form = |name: &str| schemas.functional_form(schemas.get(name).unwrap()).map(|s| s.name.as_str());
        assert_eq!(form("aten::add_.Tensor"), Some("aten::add.Tensor"));
        assert_eq!(form("aten::add.out"), Some("aten::add.Tensor"));
        assert_eq!(form("aten::bernoulli_.float"), Some("aten::bernoulli.p"));
        assert_eq!(form("aten::normal_"), Some("aten::normal_functional"));
        assert_eq!(form("aten::__iand__.Tensor"), Some("aten::__and__.Tensor"));
        assert_eq!(form("aten::pow_"), Some("aten::pow.b"));
        assert_eq!(form("aten::resize_"), None);
        schemas.declare(parse("atenx::add(Tensor self) -> Tensor"));
        schemas.forget("aten");
        assert_eq!(schemas.iter().map(|schema| schema.name.as_str()).collect::<Vec<_>>(), ["atenx::add"]);
    }
}
