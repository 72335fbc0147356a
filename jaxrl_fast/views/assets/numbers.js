"use strict";
// How all pages write numbers. Comes before uPlot, which asks for the browser's language.

// Under the POSIX locale some Chromiums name a language that no format takes, "en-US@posix".
try {
  Intl.getCanonicalLocales(navigator.language);
} catch {
  Object.defineProperty(navigator, "language", { value: "en-US" });
}

const UNKNOWN = "–";
const known = write => (value, ...how) => value === null || value === undefined ? UNKNOWN : write(value, ...how);

// Format with a few digits and a unit prefix: 12.3k; very small numbers with an exponent: 7.5e-5.
const si = known((value, figures = 3) => {
  if (Math.abs(value) >= 1e15) return Number(value.toPrecision(figures)).toExponential().replace("e+", "e");
  for (const [limit, prefix] of [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]]) {
    if (Math.abs(Number(value.toPrecision(figures))) >= limit) return `${Number((value / limit).toPrecision(figures))}${prefix}`;
  }
  const rounded = Number(value.toPrecision(figures));
  return rounded && Math.abs(rounded) < 1e-3 ? rounded.toExponential() : String(rounded);
});

const score = known(value => Math.abs(value) >= 1e6 ? si(value, 4) : Math.abs(value) >= 10 ? value.toFixed(1) : String(Number(value.toPrecision(3))));
const percent = known(part => `${Number((100 * part).toPrecision(3))} %`);

// m:ss or h:mm:ss.
const clock = known(seconds => {
  const whole = Math.round(seconds), two = number => String(number).padStart(2, "0");
  const hours = Math.floor(whole / 3600), minutes = Math.floor(whole / 60) % 60;
  return hours ? `${hours}:${two(minutes)}:${two(whole % 60)}` : `${minutes}:${two(whole % 60)}`;
});
