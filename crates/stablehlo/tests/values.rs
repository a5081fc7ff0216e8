//! Runs modules on a CPU plugin: constants arrive bit for bit, empty tensors give the values they must.

#![allow(clippy::unwrap_used, clippy::panic)]

mod samples;
#[path = "../../pjrt/tests/support/mod.rs"]
mod support;

use pjrt::{ExecuteOptions, HostSource};
use samples::{module, tensor};
use stablehlo::ElementType::*;
use stablehlo::*;

/// Bytes of every result of `module` for the given argument bytes.
fn run(module: &Module, arguments: &[&[u8]]) -> Vec<Vec<u8>> {
    let client = support::client();
    let device = &client.devices()[0];
    let executable = support::compile(module.text());
    let buffers: Vec<pjrt::Buffer> = module
        .parameters()
        .iter()
        .zip(arguments)
        .map(|(ty, bytes)| {
            let elem = pjrt::ElementType::ALL
                .into_iter()
                .find(|e| format!("{e:?}") == format!("{:?}", ty.elem))
                .unwrap();
            client.buffer_from_host(HostSource::Copy(bytes), elem, &ty.dims, device).unwrap()
        })
        .collect();
    let arguments: Vec<&pjrt::Buffer> = buffers.iter().collect();
    let options = ExecuteOptions { device, non_donatable: &[], completion: false };
    let (outputs, _) = executable.execute(&arguments, &options).unwrap();
    outputs
        .iter()
        .map(|buffer| {
            let mut bytes = vec![0; buffer.host_bytes().unwrap()];
            buffer.read_into(&mut bytes).unwrap();
            bytes
        })
        .collect()
}

fn f32s(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_le_bytes()).collect()
}

fn i32s(values: &[i32]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_le_bytes()).collect()
}

#[test]
fn scalar_constants_are_exact() {
    let values = [
        0.0,
        -0.0,
        0.1,
        -1.0 / 3.0,
        std::f64::consts::PI,
        1e-42,
        5e-324,
        -2.2e-308,
        1.7e308,
        3.4028234663852886e38,
        65504.0,
        65519.9,
        65520.0,
        f64::INFINITY,
        f64::NEG_INFINITY,
        123456789.0,
    ];
    let m = module("scalars", &[], |b, _| {
        values
            .iter()
            .flat_map(|&v| {
                [
                    b.constant_f64(F64, v),
                    b.constant_f64(F32, v),
                    b.constant_f64(F16, v),
                    b.constant_f64(BF16, v),
                ]
            })
            .collect()
    });
    for (got, v) in run(&m, &[]).chunks(4).zip(values) {
        assert_eq!(got[0], v.to_le_bytes(), "f64 {v:e}");
        assert_eq!(got[1], (v as f32).to_le_bytes(), "f32 {v:e}");
        assert_eq!(got[2], half::f16::from_f64(v).to_le_bytes(), "f16 {v:e}");
        assert_eq!(got[3], half::bf16::from_f64(v).to_le_bytes(), "bf16 {v:e}");
    }
}

#[test]
fn integer_constants_are_exact() {
    let m = module("integers", &[], |b, _| {
        Ok(vec![
            b.constant_i64(S64, i64::MIN)?,
            b.constant_i64(S64, i64::MAX)?,
            b.constant(U64, u64::MAX)?,
            b.min_value(S8)?,
            b.max_value(U32)?,
            b.constant(Pred, true)?,
            b.constant(C64, (-0.0, f64::INFINITY))?,
            // Halfway between two f32; the last bit decides, and f64 cannot hold it.
            b.constant_i64(F32, (1 << 60) + (1 << 36) + 1)?,
            b.constant_i64(F32, (1 << 60) + (1 << 36))?,
        ])
    });
    let expected: [&[u8]; 9] = [
        &i64::MIN.to_le_bytes(),
        &i64::MAX.to_le_bytes(),
        &u64::MAX.to_le_bytes(),
        &[0x80],
        &u32::MAX.to_le_bytes(),
        &[1],
        &f32s(&[-0.0, f32::INFINITY]),
        &(((1i64 << 60) + (1 << 36) + 1) as f32).to_le_bytes(),
        &(((1i64 << 60) + (1 << 36)) as f32).to_le_bytes(),
    ];
    assert_eq!(run(&m, &[]), expected);
}

/// Every byte pattern, printed element by element and as a hexadecimal string.
#[test]
fn dense_constants_keep_their_bytes() {
    let mut types = Vec::new();
    let mut expected = Vec::new();
    for elem in ElementType::ALL {
        for count in [6, 60] {
            let size = elem.size_bytes();
            let bytes: Vec<u8> = (0..count * size)
                .map(|i| match elem {
                    Pred => (i % 3 == 0) as u8,
                    S4 => (i as i8 % 16 - 8) as u8,
                    U4 => i as u8 % 16,
                    // No NaN: a plugin may change its payload.
                    _ => (i * 7 % 0x60) as u8,
                })
                .collect();
            types.push(tensor(elem, &[2, count as i64 / 2]));
            expected.push(bytes);
        }
    }
    let m = module("dense", &[], |b, _| {
        types.iter().zip(&expected).map(|(ty, bytes)| b.constant_dense(ty.clone(), bytes)).collect()
    });
    for ((got, want), ty) in run(&m, &[]).iter().zip(&expected).zip(&types) {
        let mask = if matches!(ty.elem, S4 | U4) { 0x0f } else { 0xff };
        let same = got.len() == want.len() && got.iter().zip(want).all(|(a, b)| a & mask == b & mask);
        assert!(same, "{ty}: {got:x?} != {want:x?}");
    }
}

#[test]
fn reductions_over_nothing_give_identities() {
    let m =
        module("nothing", &[tensor(F32, &[2, 0]), tensor(S32, &[2, 0]), tensor(Pred, &[2, 0])], |b, v| {
            Ok(vec![
                b.reduce_add(v[0], &[1])?,
                b.reduce_max(v[0], &[1])?,
                b.reduce_min(v[1], &[1])?,
                b.reduce_and(v[2], &[1])?,
                b.reduce_or(v[2], &[0, 1])?,
                b.dot_general(
                    v[0],
                    v[0],
                    &DotDimensionNumbers::new(&[], &[], &[1], &[1]),
                    Precision::Default,
                    F32,
                )?,
            ])
        });
    let expected: [&[u8]; 6] = [
        &f32s(&[0.0; 2]),
        &f32s(&[f32::NEG_INFINITY; 2]),
        &i32s(&[i32::MAX; 2]),
        &[1, 1],
        &[0],
        &f32s(&[0.0; 4]),
    ];
    assert_eq!(run(&m, &[&[], &[], &[]]), expected);
}

#[test]
fn empty_tensors_run() {
    let m = module("empty", &[tensor(F32, &[0, 3]), tensor(S64, &[0, 1]), tensor(F32, &[5, 3])], |b, v| {
        let rows = GatherDimensionNumbers {
            offset_dims: Dims::from_slice(&[1]),
            collapsed_slice_dims: Dims::from_slice(&[0]),
            start_index_map: Dims::from_slice(&[0]),
            index_vector_dim: 1,
            ..Default::default()
        };
        let scattered = ScatterDimensionNumbers {
            update_window_dims: Dims::from_slice(&[1]),
            inserted_window_dims: Dims::from_slice(&[0]),
            scatter_dims_to_operand_dims: Dims::from_slice(&[0]),
            index_vector_dim: 1,
            ..Default::default()
        };
        let zero = b.zero(F32)?;
        let (index, square) = (b.zero(S32)?, b.slice(v[0], &[0, 0], &[0, 0], &[1, 1])?);
        let columns = b.transpose(v[0], &[1, 0])?;
        let mut results = vec![
            b.add(v[0], v[0])?,
            b.pad(v[0], zero, &[1, 0], &[0, 0], &[2, 0])?,
            b.concatenate(&[v[0], v[2]], 0)?,
            b.gather(v[2], v[1], &rows, &[1, 3], false)?,
            b.dynamic_slice(v[2], &[index, index], &[0, 3])?,
            b.dynamic_update_slice(v[2], v[0], &[index, index])?,
            b.top_k(v[0], 2)?.0,
            b.cholesky(square, true)?,
            b.matmul(columns, v[0], Precision::Default)?,
            b.iota(tensor(S32, &[3, 0]), 1)?,
        ];
        results.extend(b.sort(&[v[0]], 0, true, |b, a| b.compare(a[0], a[1], Direction::Lt))?);
        results.extend(b.scatter(&[v[2]], v[1], &[v[0]], &scattered, ScatterFlags::default(), |b, a| {
            Ok(vec![b.add(a[0], a[1])?])
        })?);
        let window = WindowDims::new(&[1, 2]);
        results.extend(b.reduce_window(&[v[0]], &[zero], &window, |b, a| Ok(vec![b.add(a[0], a[1])?]))?);
        Ok(results)
    });
    let table = f32s(&(0..15).map(|i| i as f32).collect::<Vec<_>>());
    let got = run(&m, &[&[], &[], &table]);
    for (bytes, ty) in got.iter().zip(m.results()) {
        assert_eq!(bytes.len() as i64, ty.element_count().unwrap() * ty.elem.size_bytes() as i64, "{ty}");
    }
    assert_eq!(got[1], f32s(&[0.0; 3]));
    for unchanged in [2, 5, 11] {
        assert_eq!(got[unchanged], table, "result {unchanged}");
    }
    assert_eq!(got[8], f32s(&[0.0; 9]));
}

#[test]
fn comparisons_follow_signedness() {
    let types = [tensor(S8, &[2]), tensor(U8, &[2]), tensor(F32, &[3])];
    let m = module("compare", &types, |b, v| {
        let one_signed = b.splat(S8, &[2], 1)?;
        let one = b.splat(U8, &[2], 1)?;
        let zero = b.splat(F32, &[3], 0.0)?;
        Ok(vec![
            b.compare(v[0], one_signed, Direction::Lt)?,
            b.compare(v[1], one, Direction::Lt)?,
            b.compare(v[2], zero, Direction::Lt)?,
            b.compare_total_order(v[2], zero, Direction::Lt)?,
        ])
    });
    let bytes = [0xff, 1];
    let got = run(&m, &[&bytes, &bytes, &f32s(&[f32::NAN, -0.0, -1.0])]);
    assert_eq!(got, [vec![1, 0], vec![0, 0], vec![0, 0, 1], vec![0, 1, 1]]);
}

#[test]
fn regions_use_values_from_outside() {
    let (_, looped) = samples::all().into_iter().find(|(name, _)| *name == "while").unwrap();
    assert_eq!(run(&looped, &[&f32s(&[1.0, 2.0]), &i32s(&[3])])[1], f32s(&[4.0, 8.0]));
    let (_, folded) = samples::all().into_iter().find(|(name, _)| *name == "captured_constant").unwrap();
    assert_eq!(run(&folded, &[&f32s(&[1.0, 2.0, 3.0, 4.0])])[0], f32s(&[5.0]));
}
