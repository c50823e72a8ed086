// Draws the charts on the Now page with uPlot, using the numbers in the table below them. An update of the page redraws the charts.
import { $, all } from "./page.js";

const drawn = new Map(); // container → chart
const dark = matchMedia("(prefers-color-scheme: dark)");
const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

// length formats seconds in the same way as the page.
const length = (s) => s == null ? "–" : s < 0.001 ? "<1ms" : s < 1 ? `${Math.round(s * 1000)}ms` : s < 60 ? `${+s.toPrecision(2)}s` : s < 3600 ? `${Math.round(s / 60)}m` : `${+(s / 3600).toPrecision(2)}h`;
const count = (n) => n == null ? "–" : n.toLocaleString("en");

const charts = [
  { at: "#chart-jobs", columns: ["finished", "failed"], labels: ["Finished", "Failed"], colours: ["--run", "--bad"], format: count, bars: true },
  { at: "#chart-times", columns: ["wait", "run"], labels: ["Wait p95", "Run p95"], colours: ["--wait", "--good"], format: length },
];

// Times are local. An axis that covers several days shows only dates.
const clock = (style) => { const format = new Intl.DateTimeFormat([], style); return (at) => at == null ? "–" : format.format(at * 1000); };
const day = { day: "numeric", month: "short" }, time = { hour: "2-digit", minute: "2-digit" };
const dated = clock(day), timed = clock(time), moment = clock({ ...day, ...time });

function numbers(columns) {
  const rows = all("#stats-numbers tr[data-at]"), value = (text) => text === "" ? null : Number(text);
  return ["at", ...columns].map((name) => rows.map((row) => value(row.dataset[name])));
}

// whole lists the possible distances between two labels on an axis of whole numbers.
const whole = Array.from({ length: 30 }, (_, i) => [1, 2, 5][i % 3] * 10 ** Math.floor(i / 3));
const height = 170;
const size = (box) => ({ width: Math.max(box.clientWidth - 10, 100), height });

function make(box, { columns, labels, colours, format, bars }) {
  const ink = colour("--soft"), rule = { stroke: colour("--rule"), width: 1 };
  const axis = { stroke: ink, grid: rule, ticks: rule, font: `12px ${colour("--sans")}` };
  return new uPlot({
    ...size(box),
    cursor: { y: false, drag: { setScale: false }, points: { show: !bars } },
    axes: [{ ...axis, values: (_, list) => list.map(list.at(-1) - list[0] > 172800 ? dated : timed) }, { ...axis, size: 56, values: (_, list) => list.map(format), ...(bars && { incrs: whole }) }],
    scales: { y: { range: (_, __, most) => [0, most > 0 ? most * 1.1 : 1] } },
    series: [{ label: "From", value: (_, v) => moment(v) }, ...labels.map((label, i) => ({
      label, stroke: colour(colours[i]), width: bars ? 0 : 2, value: (_, v) => format(v),
      ...(bars && { fill: colour(colours[i]), paths: uPlot.paths.bars({ size: [0.8, 40] }), points: { show: false } }), ...(!bars && { points: { show: true, size: 4 } }),
    }))],
  }, numbers(columns), box);
}

function draw() {
  for (const chart of charts) {
    const box = $(chart.at);
    if (!box) continue;
    if (!drawn.has(box)) {
      drawn.set(box, make(box, chart));
      resized.observe(box);
    } else {
      drawn.get(box).setData(numbers(chart.columns));
    }
  }
}

const resized = new ResizeObserver((boxes) => { for (const { target } of boxes) drawn.get(target)?.setSize(size(target)); });

if (window.uPlot) {
  draw();
  document.addEventListener("renewed", draw);
  dark.addEventListener("change", () => { for (const [box, one] of drawn) { one.destroy(); drawn.delete(box); resized.unobserve(box); } draw(); });
}
