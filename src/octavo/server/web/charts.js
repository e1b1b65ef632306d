// Small charts on canvases: lines over time, and stacked columns. Colours come from the canvas's own CSS.

const PADDING = { top: 6, right: 2, bottom: 4, left: 2 };

/** A canvas that fits its box at the screen's resolution, in CSS pixels from then on. */
function prepare(canvas) {
  const scale = window.devicePixelRatio || 1;
  const width = canvas.clientWidth;
  const height = canvas.clientHeight;
  if (!width || !height) return null;
  if (canvas.width !== Math.round(width * scale) || canvas.height !== Math.round(height * scale)) {
    canvas.width = Math.round(width * scale);
    canvas.height = Math.round(height * scale);
  }
  const context = canvas.getContext("2d");
  context.setTransform(scale, 0, 0, scale, 0, 0);
  context.clearRect(0, 0, width, height);
  const style = getComputedStyle(canvas);
  const colour = (name) => style.getPropertyValue(name).trim();
  return { context, width, height, colour, ink: style.color, paper: style.backgroundColor };
}

/** A round number not below `value`: 1, 2 or 5 times a power of ten. */
export function roundUp(value) {
  if (!(value > 0)) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].map((step) => step * power).find((step) => step >= value * 0.999);
}

function drawGround({ context, width, height }) {
  const y = PADDING.top;
  context.save();
  context.globalAlpha = 0.22;
  context.lineWidth = 1;
  context.setLineDash([2, 3]);
  context.beginPath();
  context.moveTo(0, y + 0.5);
  context.lineTo(width, y + 0.5);
  context.stroke();
  context.setLineDash([]);
  context.beginPath();
  context.moveTo(0, height - PADDING.bottom + 0.5);
  context.lineTo(width, height - PADDING.bottom + 0.5);
  context.stroke();
  context.restore();
}

/** What the top of the scale means; readable above what is drawn. */
function drawLimit({ context, ink, paper }, text) {
  context.font = "11px system-ui, sans-serif";
  context.textBaseline = "top";
  context.lineJoin = "round";
  context.lineWidth = 4;
  context.strokeStyle = paper;
  context.strokeText(text, 2, PADDING.top + 3);
  context.fillStyle = ink;
  context.fillText(text, 2, PADDING.top + 3);
}

/**
 * Draws `points` ([t, value or null], oldest first) from time `start` to `end`. `max` is the top of the scale, or null
 * for what fits. A null ends the line unless `sparse`, where single measurements are joined. `marker` is a time.
 */
export function drawLine(canvas, points, { start, end, max = null, format, marker = null, sparse = false }) {
  const surface = prepare(canvas);
  if (!surface) return;
  const { context, width, height, ink } = surface;
  let highest = 0;
  for (const [, value] of points) if (value > highest) highest = value;
  const limit = max ?? roundUp(highest);
  const span = Math.max(1e-6, end - start);
  const x = (t) => PADDING.left + ((t - start) / span) * (width - PADDING.left - PADDING.right);
  const bottom = height - PADDING.bottom;
  const y = (value) => bottom - (Math.min(value, limit) / limit) * (bottom - PADDING.top);
  context.strokeStyle = context.fillStyle = ink;
  drawGround(surface);
  context.lineWidth = 1.75;
  context.lineJoin = "round";
  context.fillStyle = ink;
  let run = [];
  const flush = () => {
    if (run.length === 1) {
      context.beginPath();
      context.arc(run[0][0], run[0][1], 1.75, 0, 2 * Math.PI);
      context.fill();
    } else if (run.length) {
      context.beginPath();
      run.forEach(([px, py], k) => (k ? context.lineTo(px, py) : context.moveTo(px, py)));
      context.stroke();
      context.lineTo(run.at(-1)[0], bottom);
      context.lineTo(run[0][0], bottom);
      context.globalAlpha = 0.12;
      context.fill();
      context.globalAlpha = 1;
    }
    run = [];
  };
  for (const [t, value] of points) {
    if (value !== null && value !== undefined) run.push([x(t), y(value)]);
    else if (!sparse) flush();
  }
  flush();
  drawLimit(surface, format(limit));
  if (marker !== null) drawMarker(surface, x(marker));
}

function drawMarker({ context, height, colour }, x) {
  context.strokeStyle = colour("--marker");
  context.lineWidth = 1.5;
  context.beginPath();
  context.moveTo(x, PADDING.top);
  context.lineTo(x, height - PADDING.bottom);
  context.stroke();
}

/**
 * Draws columns of parts on top of each other, the newest on the right; `colours` are names of CSS properties. Heights
 * go with the square root of the sum, so that small columns are seen beside large ones; parts share a column fairly.
 */
export function drawStack(canvas, columns, { colours, format }) {
  const surface = prepare(canvas);
  if (!surface) return;
  const { context, width, height, colour, ink } = surface;
  const pitch = 5;
  const shown = columns.slice(-Math.floor(width / pitch));
  const sums = shown.map((parts) => parts.reduce((sum, part) => sum + part, 0));
  const limit = roundUp(Math.max(0, ...sums));
  context.strokeStyle = context.fillStyle = ink;
  drawGround(surface);
  const room = height - PADDING.bottom - PADDING.top;
  const fills = colours.map(colour);
  shown.forEach((parts, k) => {
    if (!sums[k]) return;
    const left = width - (shown.length - k) * pitch;
    const tall = Math.max(2, Math.sqrt(sums[k] / limit) * room);
    let y = height - PADDING.bottom;
    parts.forEach((part, which) => {
      const side = (part / sums[k]) * tall;
      context.fillStyle = fills[which];
      context.fillRect(left, y - side, pitch - 1, side);
      y -= side;
    });
  });
  drawLimit(surface, format(limit));
}
