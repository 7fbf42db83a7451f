// Draws the charts of the page from the JSON in #charts, in the colours of the page's theme.
(() => {
  'use strict';
  const specs = JSON.parse(document.getElementById('charts').textContent);
  const drawn = [];
  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const color = (index) => css(index < 0 ? '--grey' : `--c${index % 5}`);
  const three = (v) => Number(v.toPrecision(3)).toString();

  const axis = (title, extra) => Object.assign({
    title: { display: true, text: title, color: css('--soft') },
    grid: { color: css('--rule'), borderColor: css('--rule') },
    ticks: { color: css('--soft'), maxRotation: 0 },
  }, extra);

  function lineSet(series) {
    const base = { label: series.label, data: series.data.map(([x, y]) => ({ x, y })),
      borderColor: color(series.color), backgroundColor: color(series.color) };
    const line = { showLine: true, pointRadius: 0, pointHitRadius: 0, borderWidth: 2 };
    const mark = { showLine: false, pointRadius: 4, pointHoverRadius: 6, pointBorderWidth: 2 };
    switch (series.style) {
      case 'line': return Object.assign(base, line, { order: 3 });
      case 'dashed': return Object.assign(base, line, { borderDash: [7, 5], borderWidth: 1.5, order: 4 });
      case 'dotted': return Object.assign(base, line, { borderDash: [2, 4], borderWidth: 1.5, order: 4 });
      case 'ring': return Object.assign(base, mark,
        { pointBackgroundColor: css('--card'), pointBorderColor: color(series.color), order: 1 });
      case 'cross': return Object.assign(base, mark, { pointStyle: 'crossRot', order: 2 });
      default: return Object.assign(base, mark, { pointRadius: 3.5, order: 2 });
    }
  }

  const common = () => ({
    responsive: true, maintainAspectRatio: false, animation: false,
    interaction: { mode: 'nearest', intersect: true },
  });
  const legend = (filter) => ({ position: 'bottom', align: 'start',
    labels: { color: css('--ink'), boxWidth: 18, boxHeight: 7, padding: 10, font: { size: 11.5 },
      usePointStyle: true, filter } });

  function scatter(spec) {
    const options = common();
    options.scales = { x: axis(spec.x, { type: 'linear', beginAtZero: true }),
      y: axis(spec.y, { type: 'linear', beginAtZero: true }) };
    // Lines name themselves; of the points only those without a line do.
    const named = new Set(spec.series.filter((s) => !['point', 'ring', 'cross'].includes(s.style))
      .map((s) => s.label));
    const shown = (item, data) => {
      const set = spec.series[item.datasetIndex];
      return named.has(set.label) || !named.has(set.label.replace(/,? (measured|held out).*$/, ''));
    };
    options.plugins = { legend: legend(shown), tooltip: { callbacks: {
      label: (c) => `${c.dataset.label}: ${three(c.parsed.y)} at ${three(c.parsed.x)}` } } };
    options.plugins.legend.labels.generateLabels = (chart) =>
      Chart.defaults.plugins.legend.labels.generateLabels(chart).map((item) => {
        const set = spec.series[item.datasetIndex];
        item.pointStyle = ['point', 'ring'].includes(set.style) ? 'circle'
          : set.style === 'cross' ? 'crossRot' : 'line';
        item.lineDash = chart.data.datasets[item.datasetIndex].borderDash || [];
        item.lineWidth = 2;
        return item;
      });
    options.plugins.legend.onClick = (event, item, view) => {
      const chart = view.chart;
      const label = spec.series[item.datasetIndex].label;
      const hide = chart.isDatasetVisible(item.datasetIndex);
      spec.series.forEach((s, i) => {
        if (s.label === label || s.label.startsWith(`${label} `) || s.label.startsWith(`${label},`)) {
          chart.setDatasetVisibility(i, !hide);
        }
      });
      chart.update();
    };
    return { type: 'scatter', data: { datasets: spec.series.map(lineSet) }, options };
  }

  function capacity(spec) {
    const options = common();
    options.scales = { x: axis(spec.x, {}),
      y: axis(spec.y, { type: 'logarithmic', min: 4, ticks: { color: css('--soft'),
        callback: (v) => ([4, 8, 16, 32, 64, 128, 256].includes(v) ? v : '') },
        afterBuildTicks: (scale) => { scale.ticks = [4, 8, 16, 32, 64, 128, 256]
          .filter((v) => v <= scale.max).map((value) => ({ value })); } }) };
    options.plugins = { legend: legend(), tooltip: { callbacks: { label: (c) =>
      (Array.isArray(c.raw) ? `95 %: ${three(c.raw[0])} to ${three(c.raw[1])} KiB`
        : `${c.dataset.label}: ${three(c.raw)} KiB`) } } };
    options.plugins.legend.labels.filter = (item) => !item.text.startsWith('interval');
    const sets = [];
    spec.bars.forEach((bar, i) => {
      sets.push({ type: 'bar', label: `interval ${i}`, data: bar.range, stack: `s${i}`, order: 3,
        backgroundColor: `${color(bar.color)}55`, borderWidth: 0, barPercentage: 0.35, grouped: true });
    });
    // A point in the middle of its bar: the bar again, as thin as a line, at the estimate.
    spec.bars.forEach((bar, i) => {
      sets.push({ type: 'bar', label: bar.label, stack: `s${i}`, order: 1, barPercentage: 0.35,
        data: bar.value.map((v) => (v === null ? null : [v * 0.988, v * 1.012])), minBarLength: 4,
        backgroundColor: color(bar.color) });
    });
    sets.push({ type: 'line', label: 'one buffer at the link', data: spec.shared, order: 4,
      borderColor: css('--grey'), backgroundColor: css('--grey'), borderDash: [7, 5], borderWidth: 1.5,
      pointRadius: 0 });
    options.plugins.tooltip.callbacks.label = (c) => (c.dataset.label.startsWith('interval')
      ? `95 %: ${three(c.raw[0])} to ${three(c.raw[1])} KiB`
      : `${c.dataset.label}: ${three(Array.isArray(c.raw) ? (c.raw[0] + c.raw[1]) / 2 : c.raw)} KiB`);
    return { type: 'bar', data: { labels: spec.labels, datasets: sets }, options };
  }

  function errors(spec) {
    const options = common();
    options.indexAxis = 'y';
    const floor = 0.01;
    options.scales = { y: axis('', { title: { display: false } }),
      x: axis(spec.x, { type: 'logarithmic', min: floor, max: 300, ticks: { color: css('--soft') },
        afterBuildTicks: (scale) => { scale.ticks = [0.01, 0.1, 1, 10, 100].map((value) => ({ value })); } }) };
    options.scales.x.ticks.callback = (v) => `${v} %`;
    options.plugins = { legend: legend((item) => !item.text.startsWith('p95')), tooltip: { callbacks: {
      label: (c) => (c.dataset.label.startsWith('p95') ? `${c.dataset.label}: ${three(c.raw[1])} %`
        : `${c.dataset.label}, median: ${three(c.raw[1])} %`) } } };
    const sets = [];
    spec.kinds.forEach((kind, i) => {
      sets.push({ label: kind.label, stack: `s${i}`, order: 1, backgroundColor: color(i === 1 ? 1 : i),
        data: kind.median.map((v) => [floor, Math.max(v, floor * 1.05)]), barPercentage: 0.8 });
      sets.push({ label: `p95 ${kind.label}`, stack: `s${i}`, order: 2, barPercentage: 0.8,
        backgroundColor: `${color(i === 1 ? 1 : i)}44`,
        data: kind.p95.map((v) => [floor, Math.max(v, floor * 1.05)]) });
    });
    return { type: 'bar', data: { labels: spec.labels, datasets: sets }, options };
  }

  function draw() {
    drawn.splice(0).forEach((chart) => chart.destroy());
    Chart.defaults.font.family = getComputedStyle(document.body).fontFamily;
    for (const [id, spec] of Object.entries(specs)) {
      const canvas = document.getElementById(id);
      const caption = canvas.closest('figure').querySelector('figcaption');
      caption.replaceChildren(Object.assign(document.createElement('b'), { textContent: spec.title }),
        Object.assign(document.createElement('span'), { textContent: spec.subtitle }));
      canvas.setAttribute('aria-label', `${spec.title}: ${spec.y || ''} against ${spec.x}`);
      const config = spec.series ? scatter(spec) : spec.bars ? capacity(spec) : errors(spec);
      drawn.push(new Chart(canvas, config));
    }
  }
  draw();
  matchMedia('(prefers-color-scheme: dark)').addEventListener('change', draw);
  addEventListener('beforeprint', () => drawn.forEach((chart) => chart.resize()));
})();
