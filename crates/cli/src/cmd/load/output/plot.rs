//! Plots as SVG. Colours are constants, which the page's style replaces in dark mode; plots have no style of their own.

use std::ops::Range;

use plotters::coord::ranged1d::{AsRangedCoord, DefaultFormatting, KeyPointHint, Ranged};
use plotters::prelude::*;

/// The colours of the lines, in order.
pub(super) const LINES: [RGBColor; 3] = [RGBColor(9, 105, 218), RGBColor(191, 87, 0), RGBColor(165, 14, 14)];

/// Axes and their labels.
pub(super) const INK: RGBColor = RGBColor(87, 96, 106);

pub(super) const GRID: RGBColor = RGBColor(208, 215, 222);

/// The maximum ratio of the values in a plot with a linear axis.
const LINEAR_RATIO_MAX: f64 = 20.0;

/// A plot to be drawn at any size.
pub(super) struct Plot<'a> {
    pub(super) x: Range<f64>,
    pub(super) x_label: &'a dyn Fn(f64) -> String,
    pub(super) y_label: &'a dyn Fn(f64) -> String,
    /// The first one is drawn last.
    pub(super) lines: Vec<Vec<(f64, f64)>>,
    /// A logarithmic axis, if the values need it.
    pub(super) may_be_logarithmic: bool,
    /// The positions of grid lines on the x axis; chosen by plotters if empty.
    pub(super) x_ticks: Vec<f64>,
}

type DrawError = DrawingAreaErrorKind<std::io::Error>;

impl Plot<'_> {
    /// # Errors
    /// An error of plotters.
    pub(super) fn svg(&self, width: u32, height: u32) -> Result<String, String> {
        let values = || self.lines.iter().flatten().map(|&(_, y)| y).filter(|y| y.is_finite() && *y > 0.0);
        let max = values().fold(0.0, f64::max);
        let min = values().fold(f64::INFINITY, f64::min);
        let drawn = if self.may_be_logarithmic && max > min * LINEAR_RATIO_MAX {
            let floor = min * 0.8;
            self.draw(width, height, (floor..max * 1.2).log_scale(), floor)
        } else {
            self.draw(width, height, 0.0..if max > 0.0 { max * 1.1 } else { 1.0 }, 0.0)
        };
        drawn.map_err(|error| error.to_string())
    }

    fn draw<Y>(&self, width: u32, height: u32, y: Y, floor: f64) -> Result<String, DrawError>
    where
        Y: AsRangedCoord<Value = f64>,
        Y::CoordDescType: Ranged<ValueType = f64> + plotters::coord::ranged1d::ValueFormatter<f64>,
    {
        let mut svg = String::new();
        {
            let root = SVGBackend::with_string(&mut svg, (width, height)).into_drawing_area();
            let mut chart = ChartBuilder::on(&root)
                .margin(6)
                .margin_right(14)
                .x_label_area_size(26)
                .y_label_area_size(64)
                .build_cartesian_2d(Ticks { range: self.x.clone(), at: self.x_ticks.clone() }, y)?;
            let font = ("sans-serif", 14).into_font().color(&INK);
            chart
                .configure_mesh()
                .x_labels(if width < 500 { 4 } else { 8 })
                .y_labels(6)
                .axis_style(GRID)
                .bold_line_style(GRID)
                .light_line_style(TRANSPARENT)
                .label_style(font)
                .x_label_formatter(&|x| (self.x_label)(*x))
                .y_label_formatter(&|y| (self.y_label)(*y))
                .draw()?;
            for (line, colour) in self.lines.iter().zip(LINES).rev() {
                let points = line.iter().map(|&(x, y)| (x, if y > floor { y } else { floor }));
                chart.draw_series(LineSeries::new(points.clone(), colour.stroke_width(2)))?;
                // A line through one point is not visible.
                if line.len() == 1 {
                    chart.draw_series(points.map(|point| Circle::new(point, 3, colour.filled())))?;
                }
            }
            root.present()?;
        }
        Ok(svg)
    }
}

/// A linear axis with ticks at given places.
#[derive(Clone)]
struct Ticks {
    range: Range<f64>,
    at: Vec<f64>,
}

impl Ranged for Ticks {
    type FormatOption = DefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, limit: (i32, i32)) -> i32 {
        let fraction = (value - self.range.start) / (self.range.end - self.range.start);
        limit.0 + (f64::from(limit.1 - limit.0) * fraction).round() as i32
    }

    fn key_points<Hint: KeyPointHint>(&self, hint: Hint) -> Vec<f64> {
        if self.at.is_empty() {
            let axis: plotters::coord::types::RangedCoordf64 = self.range.clone().into();
            axis.key_points(hint)
        } else {
            self.at.clone()
        }
    }

    fn range(&self) -> Range<f64> {
        self.range.clone()
    }
}

/// `#0969DA`, as the plots have it.
pub(super) fn hex(colour: RGBColor) -> String {
    format!("#{:02X}{:02X}{:02X}", colour.0, colour.1, colour.2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draws_lines_in_their_colours() {
        let plot = Plot {
            x: 0.0..10.0,
            x_label: &|x| format!("{x}s"),
            y_label: &|y| format!("{y}"),
            lines: vec![vec![(0.0, 1.0), (10.0, 2.0)], vec![(0.0, 1000.0)]],
            may_be_logarithmic: true,
            x_ticks: Vec::new(),
        };
        let svg = plot.svg(360, 240).unwrap();
        assert!(svg.starts_with("<svg width=\"360\" height=\"240\""), "{svg}");
        for part in [&*hex(LINES[0]), &*hex(LINES[1]), "10s", "\n1000\n"] {
            assert!(svg.contains(part), "{part}: {svg}");
        }
    }

    // A run without answers, or of one second.
    #[test]
    fn draws_nothing_without_failing() {
        for lines in [vec![], vec![vec![]], vec![vec![(0.0, 0.0)]], vec![vec![(0.0, f64::NAN)]]] {
            let plot = Plot {
                x: 0.0..1.0,
                x_label: &|x| format!("{x}"),
                y_label: &|y| format!("{y}"),
                lines,
                may_be_logarithmic: true,
                x_ticks: vec![0.0],
            };
            assert!(plot.svg(720, 260).is_ok());
        }
    }
}
