// Kafka's own client in Java, as other people's programs use it: writes the records of other_clients.py, reads what we wrote.
//
//     java -cp JARS OtherClient.java SERVERS [write TOPIC CODEC [aborting]]... [read TOPIC]...

import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Base64;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Future;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

class OtherClient {
    static final int RECORDS = 40;
    static final int EACH = 5; // records of a transaction; every second one is aborted
    static final long FIRST = 1_700_000_000_000L;

    static byte[] bytes(String text) {
        return text.getBytes(StandardCharsets.UTF_8);
    }

    static ProducerRecord<byte[], byte[]> record(String topic, int n) {
        byte[] key = n % 11 == 10 ? null : bytes("text " + n % 7);
        byte[] value = n % 10 == 9 ? null : bytes(String.format("value %06d ", n).repeat(1 + n % 37));
        ProducerRecord<byte[], byte[]> made = new ProducerRecord<>(topic, null, FIRST + n, key, value);
        made.headers().add("n", bytes("" + n)).add("colour", bytes("grün")).add("nothing", null);
        return made;
    }

    static void write(String servers, String topic, String codec, boolean aborting) throws Exception {
        List<Future<RecordMetadata>> sent = new ArrayList<>();
        Map<String, Object> options = new HashMap<>(Map.of("bootstrap.servers", servers, "compression.type", codec));
        if (aborting) {
            options.put("transactional.id", topic);
        }
        try (var producer = new KafkaProducer<>(options, new ByteArraySerializer(), new ByteArraySerializer())) {
            if (aborting) {
                producer.initTransactions();
            }
            for (int n = 0; n < RECORDS; n++) {
                if (aborting && n % EACH == 0) {
                    producer.beginTransaction();
                }
                sent.add(producer.send(record(topic, n)));
                if (aborting && n % EACH == EACH - 1) {
                    producer.flush(); // those of an aborted one are in the topic too
                    if (n / EACH % 2 == 1) {
                        producer.abortTransaction();
                    } else {
                        producer.commitTransaction();
                    }
                }
            }
            producer.flush();
        }
        for (var each : aborting ? List.<Future<RecordMetadata>>of() : sent) {
            each.get(); // says why one was not written
        }
    }

    static String shown(byte[] data) {
        return data == null ? "-" : "=" + Base64.getEncoder().encodeToString(data);
    }

    static void read(String servers, String topic) {
        Map<String, Object> options = Map.of("bootstrap.servers", servers, "isolation.level", "read_committed");
        try (var consumer = new KafkaConsumer<>(options, new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
            List<TopicPartition> all = new ArrayList<>();
            consumer.partitionsFor(topic).forEach(p -> all.add(new TopicPartition(topic, p.partition())));
            consumer.assign(all);
            consumer.seekToBeginning(all);
            Map<TopicPartition, Long> ends = consumer.endOffsets(all);
            while (all.stream().anyMatch(p -> consumer.position(p) < ends.get(p))) {
                for (ConsumerRecord<byte[], byte[]> each : consumer.poll(Duration.ofMillis(100))) {
                    StringBuilder line = new StringBuilder("read " + each.partition());
                    line.append(' ').append(shown(each.key())).append(' ').append(shown(each.value()));
                    for (Header header : each.headers()) {
                        line.append(' ').append(header.key()).append(shown(header.value()));
                    }
                    System.out.println(line);
                }
            }
        }
    }

    public static void main(String[] args) throws Exception {
        for (int at = 1; at < args.length; at++) {
            switch (args[at]) {
                case "write" -> {
                    boolean aborting = at + 3 < args.length && args[at + 3].equals("aborting");
                    write(args[0], args[at + 1], args[at + 2], aborting);
                    at += aborting ? 3 : 2;
                }
                case "read" -> read(args[0], args[++at]);
                default -> throw new IllegalArgumentException(args[at]);
            }
        }
    }
}
