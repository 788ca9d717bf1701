//! A curve: the cost of an execution as a function of its size, interpolated between measurements. Knows no
//! histogram.

/// Non-decreasing costs by size.
#[derive(Debug, Clone, PartialEq)]
pub struct Curve {
    points: Vec<(usize, f64)>,
}

impl Curve {
    /// Creates a curve through the points; a cost below that of a smaller size is raised to it.
    ///
    /// # Errors
    /// If there are no points, if sizes do not ascend from above 0, or if a cost is not a finite
    /// number above 0.
    pub fn new(mut points: Vec<(usize, f64)>) -> Result<Self, String> {
        let ascends = points.windows(2).all(|pair| pair[0].0 < pair[1].0);
        let is_fine = ascends && points.first().is_some_and(|first| first.0 > 0);
        if !is_fine || !points.iter().all(|(_, cost)| cost.is_finite() && *cost > 0.0) {
            return Err(format!("sizes must ascend and costs must be above 0: {points:?}"));
        }
        let mut highest = 0.0_f64;
        for (_, cost) in &mut points {
            highest = highest.max(*cost);
            *cost = highest;
        }
        Ok(Self { points })
    }

    /// Returns the cost of a size: linear between measurements; beyond them extrapolated from the two
    /// nearest, but never below the smallest size's cost per unit.
    pub fn at(&self, size: usize) -> f64 {
        let points = &self.points;
        let first = points[0];
        let proportional = first.1 * size as f64 / first.0 as f64;
        if points.len() == 1 {
            return proportional;
        }
        let upper = points.partition_point(|(measured, _)| *measured < size).clamp(1, points.len() - 1);
        let ((from, low), (to, high)) = (points[upper - 1], points[upper]);
        let slope = (high - low) / (to - from) as f64;
        let cost = low + slope * (size as f64 - from as f64);
        if size < first.0 { cost.max(proportional) } else { cost }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cost_is_on_the_line_between_those_that_were_measured_and_never_falls() {
        let curve = Curve::new(vec![(8, 100.0), (16, 120.0), (32, 110.0), (64, 220.0)]).unwrap();
        let close =
            |size, cost: f64| assert!((curve.at(size) - cost).abs() < 1e-9, "{size}: {}", curve.at(size));
        [(4, 90.0), (8, 100.0), (12, 110.0), (16, 120.0), (24, 120.0), (48, 170.0), (96, 320.0)]
            .into_iter()
            .for_each(|(size, cost)| close(size, cost));
        assert!((1..200).all(|size| curve.at(size) <= curve.at(size + 1) && curve.at(size) > 0.0));
        let steep = Curve::new(vec![(10, 10.0), (20, 1000.0)]).unwrap();
        assert!((steep.at(5) - 5.0).abs() < 1e-9 && steep.at(1) > 0.0);
        assert!((Curve::new(vec![(4, 8.0)]).unwrap().at(6) - 12.0).abs() < 1e-9);
    }

    #[test]
    fn points_that_are_no_curve_are_refused() {
        for points in [vec![], vec![(0, 1.0)], vec![(2, 1.0), (2, 1.0)], vec![(1, 0.0)], vec![(1, f64::NAN)]]
        {
            assert!(Curve::new(points).is_err());
        }
    }
}
