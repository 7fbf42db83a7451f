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
    const mark = { showLine: false, clip: 8, pointRadius: 4, pointHoverRadius: 6, pointBorderWidth: 2 };
    switch (series.style) {
      case 'line': return Object.assign(base, line, { order: 3 });
      case 'dashed': return Object.assign(base, line, { borderDash: [7, 5], borderWidth: 1.5, order: 4 });
      case 'dotted': return Object.assign(base, line, { borderDash: [2, 4], borderWidth: 1.5, order: 4 });
      case 'strip': return Object.assign(base, line, { borderWidth: 6, spanGaps: false, order: 3 });
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
    options.scales = { x: axis(spec.x, { type: 'linear', beginAtZero: true, max: spec.x_max }),
      y: axis(spec.y, { type: 'linear', beginAtZero: true }) };
    if (spec.x_step) options.scales.x.ticks.stepSize = spec.x_step;
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

  // Vertical lines from low to high behind the points of datasets that have a range.
  const whiskers = { id: 'whiskers', beforeDatasetsDraw(chart) {
    const { ctx, scales: { x, y } } = chart;
    chart.data.datasets.forEach((set, i) => {
      if (!set.range || !chart.isDatasetVisible(i)) return;
      ctx.save();
      ctx.strokeStyle = set.borderColor;
      ctx.lineWidth = 2;
      set.data.forEach((point, k) => {
        const at = x.getPixelForValue(point.x);
        const [low, high] = set.range[k].map((v) => y.getPixelForValue(Math.max(v, y.min)));
        ctx.beginPath();
        ctx.moveTo(at, low); ctx.lineTo(at, high);
        ctx.moveTo(at - 5, low); ctx.lineTo(at + 5, low);
        ctx.moveTo(at - 5, high); ctx.lineTo(at + 5, high);
        ctx.stroke();
      });
      ctx.restore();
    });
  } };
  const only = (values) => (scale) => {
    scale.ticks = values.filter((v) => v >= scale.min && v <= scale.max).map((value) => ({ value }));
  };

  function capacity(spec) {
    const options = common();
    const most = Math.max(...spec.counts);
    options.scales = {
      x: axis(spec.x, { type: 'logarithmic', min: Math.min(...spec.counts) / 1.5, max: most * 1.5,
        afterBuildTicks: only(spec.counts) }),
      y: axis(spec.y, { type: 'logarithmic', min: spec.min, max: spec.max,
        afterBuildTicks: only([1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024]) }) };
    for (const scale of Object.values(options.scales)) scale.ticks.callback = (v) => String(v);
    options.plugins = { legend: legend(), tooltip: { callbacks: { label: (c) => {
      const range = c.dataset.range && c.dataset.range[c.dataIndex];
      return `${c.dataset.label}: ${three(c.parsed.y)} KiB`
        + (range ? ` (95 %: ${three(range[0])} to ${three(range[1])})` : '');
    } } } };
    // Side by side, so that neither hides the other.
    const sets = spec.series.map((series, i) => ({ label: series.label, range: series.range,
      data: series.data.map(([x, y]) => ({ x: x * (i ? 1.035 : 0.966), y })), order: 1,
      showLine: false, clip: 8, pointRadius: 5, pointHoverRadius: 7, pointStyle: i ? 'rectRot' : 'circle',
      borderColor: color(series.color), backgroundColor: color(series.color) }));
    sets.push({ label: 'one buffer at the link would give', showLine: true, order: 2, pointRadius: 0,
      data: spec.shared.map(([x, y]) => ({ x, y })), borderColor: css('--grey'), borderWidth: 1.5,
      backgroundColor: css('--grey'), borderDash: [7, 5], pointStyle: 'line' });
    return { type: 'scatter', data: { datasets: sets }, options, plugins: [whiskers] };
  }

  function errors(spec) {
    const options = common();
    options.indexAxis = 'y';
    const floor = 0.01;
    options.scales = { y: axis('', { title: { display: false }, stacked: true }),
      x: axis(spec.x, { type: 'logarithmic', min: floor, max: 300, stacked: false,
        afterBuildTicks: only([0.01, 0.1, 1, 10, 100]) }) };
    options.scales.x.ticks.callback = (v) => `${v} %`;
    options.plugins = { legend: legend((item) => !item.text.startsWith('p95')), tooltip: { callbacks: {
      label: (c) => (c.dataset.label.startsWith('p95') ? `${c.dataset.label}: ${three(c.raw[1])} %`
        : `${c.dataset.label}, median: ${three(c.raw[1])} %`) } } };
    const sets = [];
    spec.kinds.forEach((kind, i) => {
      sets.push({ label: kind.label, stack: `s${i}`, order: 1, backgroundColor: color(i),
        data: kind.median.map((v) => [floor, Math.max(v, floor * 1.05)]), barPercentage: 0.8 });
      sets.push({ label: `p95 ${kind.label}`, stack: `s${i}`, order: 2, barPercentage: 0.8,
        backgroundColor: `${color(i)}44`,
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
      const config = spec.shared ? capacity(spec) : spec.series ? scatter(spec) : errors(spec);
      drawn.push(new Chart(canvas, config));
    }
  }
  draw();
  matchMedia('(prefers-color-scheme: dark)').addEventListener('change', draw);
  addEventListener('beforeprint', () => drawn.forEach((chart) => chart.resize()));
})();
