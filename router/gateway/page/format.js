// Numbers as people read them; what nobody told is a dash.

export const NONE = "–";

const whole = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });
const compact = new Intl.NumberFormat("en-US", { notation: "compact", maximumFractionDigits: 1 });

export const count = (value) => (value === null ? NONE : whole.format(value));

export const short = (value) => (value === null ? NONE : value < 10_000 ? whole.format(value) : compact.format(value));

export const percent = (share, digits = 1) => (share === null ? NONE : `${(share * 100).toFixed(digits)} %`);

// Points of a percentage, with their sign.
export function points(difference) {
  if (difference === null) return NONE;
  const text = (Math.abs(difference) * 100).toFixed(1);
  return text === "0.0" ? "0.0" : `${difference < 0 ? "−" : "+"}${text}`;
}

export function seconds(value) {
  if (value === null) return NONE;
  if (value < 0.0005) return "0 ms";
  if (value < 0.9995) return `${(value * 1000).toFixed(0)} ms`;
  if (value < 100) return `${value.toFixed(value < 10 ? 2 : 1)} s`;
  return duration(value);
}

export function duration(value) {
  const all = Math.floor(value);
  const [days, hours, minutes] = [Math.floor(all / 86_400), Math.floor(all / 3600) % 24, Math.floor(all / 60) % 60];
  if (days) return `${days} d ${hours} h`;
  if (hours) return `${hours} h ${minutes} min`;
  return minutes ? `${minutes} min ${all % 60} s` : `${all} s`;
}

// A time of day of this browser, from seconds since 1970.
export function clock(at) {
  return new Date(at * 1000).toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", second: "2-digit", hour12: false });
}

export const rate = (value) => (value === null ? NONE : value < 9.95 ? value.toFixed(1) : whole.format(value));
