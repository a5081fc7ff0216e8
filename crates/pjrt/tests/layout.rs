//! The hand-written C structs against a table derived from the C headers (`abi/generate.py`).

#![allow(clippy::unwrap_used)]

use std::collections::HashMap;

use pjrt::sys;

const TABLE: &str = include_str!("abi/pjrt_0_114.txt");

/// Size, and name, offset and size of each field.
type Struct = (usize, Vec<(&'static str, usize, usize)>);

fn table() -> (HashMap<&'static str, Struct>, Vec<(&'static str, usize)>) {
    let (mut structs, mut methods, mut current) = (HashMap::new(), Vec::new(), "");
    for line in TABLE.lines().filter(|line| !line.starts_with('#')) {
        let words: Vec<&str> = line.split_whitespace().collect();
        let number = |i: usize| words[i].parse::<usize>().unwrap();
        match words[0] {
            "struct" => {
                current = words[1];
                structs.insert(current, (number(2), Vec::new()));
            }
            "method" => methods.push((words[1], number(2))),
            field => structs.get_mut(current).unwrap().1.push((field, number(1), number(2))),
        }
    }
    (structs, methods)
}

#[test]
fn structs_match_the_headers() {
    let (structs, _) = table();
    assert!(sys::STRUCTS.len() > 60);
    for (name, size, fields) in sys::STRUCTS {
        let (expected_size, expected) = &structs[name];
        let fields: Vec<_> = fields
            .iter()
            .map(|(field, offset, size)| (field.trim_end_matches('_'), *offset, *size))
            .collect();
        assert_eq!(&fields, expected, "{name}");
        assert_eq!(size, expected_size, "{name}");
    }
}

#[test]
fn methods_are_in_the_order_of_the_headers() {
    let (_, methods) = table();
    assert_eq!(sys::METHODS.len(), 118);
    assert_eq!(sys::METHODS, &methods[..sys::METHODS.len()]);
}
