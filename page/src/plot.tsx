/** A plot of the newest figures (uPlot). */

import { useEffect, useRef } from 'preact/hooks';
import uPlot from 'uplot';
import type { Series } from './series';

interface Props {
  label: string;
  series: Series;
  /** At most four. */
  names: string[];
  format: (value: number) => string;
}

const HEIGHT = 160;

export function Plot({ label, series, names, format }: Props) {
  const box = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot | null>(null);

  useEffect(() => {
    const element = box.current!;
    const scheme = matchMedia('(prefers-color-scheme: dark)');
    const data = () => [series.times, ...series.columns] as uPlot.AlignedData;
    const draw = () => {
      plot.current?.destroy();
      const style = getComputedStyle(element);
      const color = (name: string) => style.getPropertyValue(name).trim();
      const axis = {
        stroke: color('--muted'),
        grid: { stroke: color('--line'), width: 1 },
        ticks: { show: false },
        font: '12px system-ui, sans-serif',
      };
      plot.current = new uPlot(
        {
          width: element.clientWidth,
          height: HEIGHT,
          padding: [8, 28, 0, 0],
          legend: { show: false },
          cursor: { show: false },
          scales: { y: { range: (_, __, max) => [0, max > 0 ? max * 1.1 : 1] } },
          axes: [
            // The labels have seconds.
            { ...axis, size: 28, space: 80, incrs: [1, 2, 5, 10, 15, 30, 60, 120, 300], values: (_, times) => times.map((time) => new Date(time * 1000).toLocaleTimeString('en-GB')) },
            { ...axis, size: 68, space: 32, values: (_, values) => values.map(format) },
          ],
          series: [{}, ...names.map((name, index) => ({ label: name, stroke: color(`--plot-${index}`), width: 2, points: { show: false } }))],
        },
        data(),
        element,
      );
    };
    draw();
    const observer = new ResizeObserver(() => plot.current?.setSize({ width: element.clientWidth, height: HEIGHT }));
    observer.observe(element);
    scheme.addEventListener('change', draw);
    return () => {
      observer.disconnect();
      scheme.removeEventListener('change', draw);
      plot.current?.destroy();
      plot.current = null;
    };
  }, [series]);

  useEffect(() => plot.current?.setData([series.times, ...series.columns] as uPlot.AlignedData));

  const newest = names.map((name, index) => {
    const value = series.columns[index]?.at(-1);
    return { name, text: value === null || value === undefined ? '–' : format(value) };
  });
  return (
    <figure class="plot">
      <figcaption>
        <span class="plot-title">{label}</span>
        <span class="legend">
          {newest.map(({ name, text }, index) => (
            <span key={name}>
              <i class={`swatch swatch-${index}`} />
              {name} <b>{text}</b>
            </span>
          ))}
        </span>
      </figcaption>
      <div ref={box} class="canvas" role="img" aria-label={`Plot of ${label}. Newest: ${newest.map(({ name, text }) => `${name} ${text}`).join(', ')}`} />
    </figure>
  );
}
