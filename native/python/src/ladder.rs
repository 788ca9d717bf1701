//! Bindings of the choice of ladders.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use streamlearn_serve::curve::Curve;
use streamlearn_serve::ladder::{Choice, Demand, Ladder};

/// How often each size came, and what each bucket that was measured costs.
type Given = (Vec<(usize, u64)>, Vec<(usize, f64)>);

/// The same, with a cost for every size.
type Priced = (Vec<(usize, u64)>, Curve);

fn priced(demands: Vec<Given>) -> PyResult<Vec<Priced>> {
    if demands.is_empty() {
        return Err(PyValueError::new_err("cannot choose a ladder without demand"));
    }
    let curve = |costs| Curve::new(costs).map_err(PyValueError::new_err);
    demands.into_iter().map(|(histogram, costs)| Ok((histogram, curve(costs)?))).collect()
}

/// The best ladder of one bucket, of two at most, and so on, by exact dynamic programming.
#[pyfunction]
fn choose_ladders(
    py: Python<'_>,
    demands: Vec<Given>,
    bounds: (usize, usize, usize),
) -> PyResult<Vec<Vec<usize>>> {
    let (top, buckets_max, multiple) = bounds;
    if top == 0 || buckets_max == 0 || multiple == 0 {
        let said = format!("of top {top}, buckets_max {buckets_max} and multiple {multiple} one is 0");
        return Err(PyValueError::new_err(said));
    }
    let priced = priced(demands)?;
    Ok(py.detach(|| {
        let costs: Vec<_> = priced.iter().map(|(_, curve)| |size| curve.at(size)).collect();
        let demands = priced.iter().zip(&costs).map(|((histogram, _), cost)| Demand { histogram, cost });
        let choice = Choice { top, buckets_max, multiple };
        let found = Ladder::choices(&demands.collect::<Vec<_>>(), choice);
        found.iter().map(|ladder| ladder.sizes().to_vec()).collect()
    }))
}

/// Which share of what a ladder computes is padding, and what one execution costs in the mean.
#[pyfunction]
fn ladder_figures(sizes: Vec<usize>, demands: Vec<Given>) -> PyResult<(f64, f64)> {
    let ladder = Ladder::new(sizes).map_err(|error| PyValueError::new_err(error.to_string()))?;
    let (mut all, mut cost, mut count) = (Vec::new(), 0.0, 0_u64);
    for (histogram, curve) in priced(demands)? {
        cost += ladder.cost(&Demand { histogram: &histogram, cost: &|size| curve.at(size) });
        count += histogram.iter().map(|(_, count)| count).sum::<u64>();
        all.extend(histogram);
    }
    Ok((ladder.waste(&all), if count == 0 { 0.0 } else { cost / count as f64 }))
}

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(choose_ladders, module)?)?;
    module.add_function(wrap_pyfunction!(ladder_figures, module)?)
}
