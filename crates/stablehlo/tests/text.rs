//! The printed text of every operation, and what shapes it.

#![allow(clippy::unwrap_used, clippy::panic)]

mod samples;

use samples::{all, module, tensor};
use stablehlo::ElementType::*;
use stablehlo::*;

#[test]
fn text_of_every_sample() {
    for (name, module) in all() {
        insta::assert_snapshot!(name, module.text());
    }
}

#[test]
fn same_calls_give_the_same_bytes() {
    for ((name, first), (_, second)) in all().iter().zip(all()) {
        assert_eq!(first.text(), second.text(), "{name}");
    }
}

#[test]
fn unused_operations_are_dropped_and_parameters_stay() {
    let m = module("dead", &[tensor(F32, &[2]), tensor(F32, &[2])], |b, v| {
        let unused = b.sine(v[1])?;
        b.reduce_add(unused, &[0])?;
        Ok(vec![b.negate(v[0])?])
    });
    insta::assert_snapshot!("dead_code", m.text());
    assert_eq!((m.op_count(), m.parameters().len(), m.results().len()), (1, 2, 1));
}

#[test]
fn side_effects_stay() {
    let m = module("effects", &[tensor(F32, &[2])], |b, v| {
        let config = BackendConfig::Dict(vec![("axis".into(), "1 : i64".into())]);
        b.custom_call("kept", v, &[tensor(F32, &[2])], ApiVersion::TypedFfi, &config, true)?;
        b.custom_call("dropped", v, &[tensor(F32, &[2])], ApiVersion::TypedFfi, &config, false)?;
        let opaque = BackendConfig::Opaque("a \"quoted\"\n\\ string".into());
        b.custom_call("none", &[], &[], ApiVersion::Original, &opaque, true)?;
        Ok(v.to_vec())
    });
    insta::assert_snapshot!("side_effects", m.text());
}

#[test]
fn a_side_effect_keeps_the_loop_around_it() {
    let m = module("looped", &[tensor(S32, &[])], |b, v| {
        b.while_loop(
            &[v[0]],
            |b, _| b.constant(Pred, false),
            |b, a| {
                b.custom_call("seen", a, &[], ApiVersion::TypedFfi, &BackendConfig::None, true)?;
                Ok(a.to_vec())
            },
        )?;
        Ok(Vec::new())
    });
    assert!(m.text().contains("\"seen\""), "{}", m.text());
}

#[test]
fn constants_are_reused_within_sight() {
    let mut b = Builder::new("reuse");
    let x = b.parameter(tensor(F32, &[2]));
    let zero = b.zero(F32).unwrap();
    assert_eq!(b.constant_f64(F32, 0.0).unwrap(), zero);
    assert_ne!(b.constant_f64(F32, -0.0).unwrap(), zero);
    assert_ne!(b.zero(S32).unwrap(), zero);
    assert_eq!(b.splat(F32, &[2], 0.0).unwrap(), b.splat(F32, &[2], 0.0).unwrap());
    let ty = tensor(S32, &[3]);
    assert_eq!(b.iota(ty.clone(), 0).unwrap(), b.iota(ty, 0).unwrap());
    b.reduce(&[x], &[zero], &[0], |b, a| {
        assert_ne!(b.zero(F32)?, zero);
        Ok(vec![b.add(a[0], a[1])?])
    })
    .unwrap();
    // The region is closed; its constants must not be seen outside.
    assert_eq!(b.zero(F32).unwrap(), zero);
    let pred = b.constant(Pred, true).unwrap();
    b.if_else(
        pred,
        |b| {
            assert_eq!(b.zero(F32)?, zero);
            Ok(vec![b.constant_f64(F32, 5.0)?])
        },
        |b| Ok(vec![b.constant_f64(F32, 5.0)?]),
    )
    .unwrap();
}

#[test]
fn operations_that_change_nothing_are_their_operand() {
    let mut b = Builder::new("identity");
    let x = b.parameter(tensor(F32, &[2, 3]));
    let s = b.parameter(tensor(F32, &[]));
    let same = [
        b.reshape(x, &[2, 3]),
        b.transpose(x, &[0, 1]),
        b.broadcast_in_dim(x, &[2, 3], &[0, 1]),
        b.slice(x, &[0, 0], &[2, 3], &[1, 1]),
        b.pad(x, s, &[0, 0], &[0, 0], &[0, 0]),
        b.concatenate(&[x], 1),
        b.reverse(x, &[]),
        b.convert(x, F32),
        b.bitcast_convert(x, F32),
    ];
    for result in same {
        assert_eq!(result.unwrap(), x);
    }
    assert_eq!(b.broadcast_scalar(s, &[]).unwrap(), s);
}

/// Printing is linear: 2,000 operations take milliseconds even without optimisation.
#[test]
fn large_modules_build_fast() {
    let start = std::time::Instant::now();
    let m = module("large", &[tensor(F32, &[16, 16])], |b, v| {
        let mut x = v[0];
        for i in 0..1000 {
            let c = b.splat(F32, &[16, 16], i as f64)?;
            x = b.add(x, c)?;
        }
        Ok(vec![x])
    });
    assert_eq!(m.op_count(), 3000);
    assert!(start.elapsed().as_millis() < 500, "{:?}", start.elapsed());
}
