// In front of the class of this name in Kafka's tests, on their class path: requests of share groups go to a gateway.

package org.apache.kafka.server;

import java.io.BufferedReader;
import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.io.IOException;
import java.io.InputStreamReader;
import java.net.Socket;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.EnumSet;
import java.util.IdentityHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.stream.Collectors;

import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.message.DescribeClusterRequestData;
import org.apache.kafka.common.message.DescribeConfigsRequestData;
import org.apache.kafka.common.protocol.ApiKeys;
import org.apache.kafka.common.protocol.ByteBufferAccessor;
import org.apache.kafka.common.requests.AbstractRequest;
import org.apache.kafka.common.requests.AbstractResponse;
import org.apache.kafka.common.requests.DescribeClusterRequest;
import org.apache.kafka.common.requests.DescribeClusterResponse;
import org.apache.kafka.common.requests.DescribeConfigsRequest;
import org.apache.kafka.common.requests.DescribeConfigsResponse;
import org.apache.kafka.common.requests.RequestHeader;
import org.apache.kafka.common.requests.ResponseHeader;

/**
 * What tests open is a connection to a broker of their cluster. Behind each that sends a request of a share group is
 * one to the gateway in front of this cluster. It is closed after the test has closed the first.
 */
public class IntegrationTestUtils {
    private static final Set<ApiKeys> OF_THE_GATEWAY = EnumSet.of(
        ApiKeys.SHARE_GROUP_HEARTBEAT,
        ApiKeys.SHARE_GROUP_DESCRIBE,
        ApiKeys.SHARE_FETCH,
        ApiKeys.SHARE_ACKNOWLEDGE
    );
    private static final int TIMEOUT_MS = 60_000;
    private static final AtomicInteger LAST_ID = new AtomicInteger();
    private static final Map<Socket, Socket> GATEWAYS = new IdentityHashMap<>();

    // ------------------------------------------------------------------------------------ as Kafka's own class

    public static Socket connect(int port) throws IOException {
        return new Socket("localhost", port);
    }

    public static <T extends AbstractResponse> T connectAndReceive(AbstractRequest request, int port)
            throws IOException {
        try (Socket socket = connect(port)) {
            return sendAndReceive(request, socket);
        }
    }

    /** Tests look up with an Admin client, which only knows the brokers, whether a member has joined. So they are told. */
    public static <T extends AbstractResponse> T sendAndReceive(AbstractRequest request, Socket socket)
            throws IOException {
        closeLeftGateways();
        if (!OF_THE_GATEWAY.contains(request.apiKey())) {
            return exchange(request, socket);
        }
        if (request.apiKey() == ApiKeys.SHARE_GROUP_HEARTBEAT) {
            exchange(request, socket);
        }
        return exchange(request, gatewayBehind(socket));
    }

    public static RequestHeader nextRequestHeader(ApiKeys key, short version) {
        return new RequestHeader(key, version, "client-id", LAST_ID.incrementAndGet());
    }

    public static void sendRequest(Socket socket, byte[] request) throws IOException {
        DataOutputStream out = new DataOutputStream(socket.getOutputStream());
        out.writeInt(request.length);
        out.write(request);
        out.flush();
    }

    @SuppressWarnings("unchecked")
    public static <T extends AbstractResponse> T receive(Socket socket, ApiKeys key, short version)
            throws IOException {
        DataInputStream in = new DataInputStream(socket.getInputStream());
        byte[] received = new byte[in.readInt()];
        in.readFully(received);
        ByteBuffer buffer = ByteBuffer.wrap(received);
        ResponseHeader.parse(buffer, key.responseHeaderVersion(version));
        return (T) AbstractResponse.parseResponse(key, new ByteBufferAccessor(buffer), version);
    }

    private static <T extends AbstractResponse> T exchange(AbstractRequest request, Socket socket)
            throws IOException {
        ByteBuffer buffer = request.serializeWithHeader(nextRequestHeader(request.apiKey(), request.version()));
        byte[] bytes = new byte[buffer.remaining()];
        buffer.get(bytes);
        sendRequest(socket, bytes);
        return receive(socket, request.apiKey(), request.version());
    }

    // -------------------------------------------------------------------------------------------- the gateway

    private static synchronized void closeLeftGateways() throws IOException {
        for (Socket socket : List.copyOf(GATEWAYS.keySet())) {
            if (socket.isClosed()) {
                GATEWAYS.remove(socket).close();
            }
        }
    }

    private static synchronized Socket gatewayBehind(Socket socket) throws IOException {
        Socket gateway = GATEWAYS.get(socket);
        if (gateway == null) {
            gateway = connect(portOfGateway(socket));
            gateway.setSoTimeout(TIMEOUT_MS);
            GATEWAYS.put(socket, gateway);
        }
        return gateway;
    }

    /** Asks the Python side, with a line: cluster, bootstrap servers, settings of share groups. */
    private static int portOfGateway(Socket broker) throws IOException {
        DescribeClusterResponse cluster = exchange(
            new DescribeClusterRequest.Builder(new DescribeClusterRequestData()).build(), broker);
        String servers = cluster.data().brokers().stream()
            .map(one -> one.host() + ":" + one.port()).collect(Collectors.joining(","));
        int id = cluster.data().brokers().stream()
            .filter(one -> one.port() == broker.getPort()).findFirst().orElseThrow().brokerId();
        String line = String.join(" ", cluster.data().clusterId(), servers, settings(broker, id)) + "\n";
        try (Socket asked = connect(Integer.getInteger("judges.port"))) {
            asked.getOutputStream().write(line.getBytes(StandardCharsets.UTF_8));
            BufferedReader in = new BufferedReader(new InputStreamReader(asked.getInputStream(), StandardCharsets.UTF_8));
            return Integer.parseInt(in.readLine());
        }
    }

    private static String settings(Socket broker, int id) throws IOException {
        DescribeConfigsRequestData.DescribeConfigsResource wanted = new DescribeConfigsRequestData.DescribeConfigsResource()
            .setResourceType(ConfigResource.Type.BROKER.id()).setResourceName(Integer.toString(id));
        DescribeConfigsResponse configs = exchange(new DescribeConfigsRequest.Builder(
            new DescribeConfigsRequestData().setResources(List.of(wanted))).build(), broker);
        return configs.data().results().get(0).configs().stream()
            .filter(one -> one.name().startsWith("group.share.") && one.value() != null && !one.value().isEmpty())
            .map(one -> one.name() + "=" + one.value()).collect(Collectors.joining(" "));
    }
}
